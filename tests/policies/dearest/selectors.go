// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

const ours = `device.attributes["gpu.aliyun.com"]`

// selector is an expression: cheap, or one of those by which somebody could make each device dear. Some match
// nothing; what the API server does not take is found out by its own estimate. Sizes are drawn again and again
// until the estimate is nearly reached.
func selector(random *rand.Rand, w words, kinds kinds) string {
	pick := func(texts ...string) string { return texts[random.IntN(len(texts))] }
	word := func(of []string) string {
		if len(of) == 0 {
			return "none"
		}
		return of[random.IntN(len(of))]
	}
	n := func() int { return 1 << random.IntN(20) }
	text := func(most int) string { return strings.Repeat(pick("a", "ab", "a,"), 1+random.IntN(most)) }
	number := strconv.Itoa(random.IntN(100000))
	cheap := []string{
		`true`, `false`, ours + `.model == "none"`, fmt.Sprintf(ours+`.model == %q`, word(w.models)),
		fmt.Sprintf(ours+`.?uuid.orValue("") == %q`, word(w.uuids)),
		fmt.Sprintf(ours+`.?uuid.orValue("") != %q`, word(w.uuids)),
		ours + `.uuid == ` + ours + `.uuid`, `device.attributes["none"].?index.orValue(7) == 7`,
		fmt.Sprintf(ours+`.?profile.orValue("") == %q`, word(w.profiles)),
		fmt.Sprintf(ours+`.?index.orValue(0) %s %d`, pick("<", ">=", "!=", "=="), random.IntN(16)),
		fmt.Sprintf(ours+`.mode == %q`, pick("share", "cgpu", "core-mem", "mps", "exclusive", "topology", "mig")),
		fmt.Sprintf(ours+`.mode != %q`, pick("share", "cgpu", "core-mem", "mps", "exclusive", "topology", "mig")),
		fmt.Sprintf(ours+`.?gpuCount.orValue(1) %s %d`, pick("==", ">=", "<="), 1+random.IntN(8)),
		ours + `.productName.matches("A10|H|V")`, `device.allowMultipleAllocations`, `!device.allowMultipleAllocations`,
		`device.capacity["gpu.aliyun.com"].memory.isGreaterThan(quantity("` + number + `Mi"))`,
		`has(` + ours + `.uuid)`, `semver("1.0.0").isLessThan(` + ours + `.driverVersion)`,
	}
	// Different texts that mean the same: the scheduler keeps ten expressions.
	distinct := []string{
		`device.driver != "` + number + `"`, number + ` == ` + number, `"` + number + `" != ""`,
		ours + `.model != "` + number + `"`, ours + `.memoryMiB != ` + number,
		`device.driver in ["gpu.aliyun.com"` + strings.Repeat(`, "`+number+`"`, random.IntN(1000)) + `]`,
		`true` + strings.Repeat(` && device.driver != "`+number+`"`, random.IntN(280)),
		`false` + strings.Repeat(` || device.driver == "gpu.aliyun.com"`, random.IntN(250)) + ` || "` + number +
			`" != ""`,
		strings.Repeat("!!", random.IntN(20)) + `(device.driver != "` + number + `")`,
	}
	body := func(x string) string {
		return pick(x+` >= 0`, x+` == `+x, `device.driver != string(`+x+`)`, `string(`+x+`).matches("[0-9]+")`,
			x+` != `+number, ours+`.memoryMiB != `+x)
	}
	digits := `[0,1,2,3,4,5,6,7,8,9]`
	loops := []string{
		fmt.Sprintf(`lists.range(%d).%s`, n(), pick(`sum() >= 0`, `sort().size() >= 0`, `reverse().size() >= 0`,
			`distinct().size() >= 0`, `max() >= 0`, `isSorted()`, `slice(0, 1).size() >= 0`)),
		fmt.Sprintf(`lists.range(%d).all(x, %s)`, n(), body("x")),
		fmt.Sprintf(`lists.range(%d).all(x, lists.range(%d).all(y, %s))`, n(), n(), body("y")),
		fmt.Sprintf(`lists.range(%d).map(x, x + %s).size() > 0`, n(), number),
		fmt.Sprintf(`lists.range(%d).filter(x, %s).size() > 0`, n(), body("x")),
		fmt.Sprintf(`lists.range(%d).transformList(i, v, i + v).size() > 0`, n()),
		fmt.Sprintf(`lists.range(%d).all(i, v, i + v >= 0)`, n()),
		fmt.Sprintf(`lists.range(%d).sortBy(x, -x).size() > 0`, n()),
		fmt.Sprintf(`cel.bind(x, lists.range(%d), x.all(y, x.size() > 0))`, n()),
		fmt.Sprintf(`%s.all(a, %s.all(b, %s.all(c, %s)))`, digits, digits, digits, body("c")),
		fmt.Sprintf(`%s.all(a, %s.all(b, %s.all(c, %s.all(d, %s))))`, digits, digits, digits, digits, body("d")),
		fmt.Sprintf(`%s.exists(k, %s)`, ours, pick(`k == "none"`, `k.matches("(a|aa){500}b")`, `k != ""`)),
		fmt.Sprintf(`!%s.exists(k, %s.exists(l, k == "none" || l == "none"))`, ours, ours),
		fmt.Sprintf(`!{%s: 1}.all(k, k < 0)`, number),
	}
	pattern := pick("(a|aa){%d}b", "(a?){%d}b", "(.*,){%d}b", "((.*)*){%d}z", "(a{1,30}){%d}b", "([a-z]|a.){%d}$",
		"(x+x+)+y{%d}", "(\\\\w|.|a){%d}z")
	pattern = fmt.Sprintf(pattern, 1+random.IntN(1000))
	if random.IntN(2) == 0 {
		pattern = strings.Repeat(pick("a*", "(a*)*", "a?", "."), 1+random.IntN(1<<random.IntN(10))) + "z"
	}
	strange := []string{
		fmt.Sprintf(`!%q.matches("%s")`, text(5000), pattern),
		fmt.Sprintf(`%q.find("%s") == ""`, text(5000), pattern),
		fmt.Sprintf(`%q.findAll("%s").size() >= 0`, text(5000), pattern),
		fmt.Sprintf(`!%s.productName.matches("%s")`, ours, pattern),
		fmt.Sprintf(`!device.driver.matches("%s")`, pattern),
		fmt.Sprintf(`%q.split("").size() >= 0`, text(5000)), fmt.Sprintf(`%q.split("").join("%s").size() > 0`,
			text(100), text(50)),
		fmt.Sprintf(`%q.replace("a", %q).size() > 0`, text(3000), text(2000)),
		fmt.Sprintf(`%q.replace("", %q).replace("a", %q).size() > 0`, text(500), text(500), text(500)),
		fmt.Sprintf(`cel.bind(a, %q, cel.bind(b, a+a+a+a, cel.bind(c, b+b+b+b, (c+c+c+c).size() > 0)))`, text(2000)),
		fmt.Sprintf(`cel.bind(a, %q, cel.bind(b, a+a+a+a, cel.bind(c, b+b+b+b, !(c+c+c+c).matches("%s"))))`,
			text(1000), pattern),
		fmt.Sprintf(`"%%s%%s%%s".format([%q, %s, 1]).size() > 0`, text(1000), digits),
		fmt.Sprintf(`isQuantity(%q) || true`, text(5000)), fmt.Sprintf(`!isSemver(%q)`, text(5000)),
		fmt.Sprintf(`quantity("1%s").isInteger() || true`, strings.Repeat("0", random.IntN(9000))),
		fmt.Sprintf(`quantity("1e%d").isInteger() || true`, random.IntN(1<<20)),
		fmt.Sprintf(`!url("http://a/?%s").getQuery().exists(k, k == "none")`, strings.Repeat("a=b&",
			random.IntN(2000))),
		fmt.Sprintf(`!isIP(%q) && !isCIDR(%q) && !isURL(%q)`, text(3000), text(3000), text(3000)),
		fmt.Sprintf(`[%s].flatten().distinct().size() >= 0`, strings.Repeat(digits+`,`, random.IntN(400))),
		fmt.Sprintf(`sets.intersects([%s], [-1]) || true`, strings.Repeat("1,", random.IntN(4000))),
		fmt.Sprintf(`!sets.contains([%s], [-1, -2, -3, -4])`, strings.Repeat("1,", random.IntN(4000))),
		fmt.Sprintf(`!format.dns1123Label().validate(%q).hasValue() || true`, text(5000)),
		fmt.Sprintf(`%q.lowerAscii().upperAscii().indexOf("z") < 0`, text(5000)),
		fmt.Sprintf(`%q.indexOf(%q) < 0`, text(4000)+"c", text(2000)+"d"),
		fmt.Sprintf(`[%s].sort().size() > 0`, strings.Repeat("2,1,", random.IntN(2000))),
	}
	// What calls nothing, or nothing that is known to be dear, and is dear for how it is written.
	times := 1 + random.IntN(240)
	part := `[0` + strings.Repeat(`,0`, random.IntN(4)) + `]`
	joined := part + strings.Repeat(`+`+part, times-1)
	flat := func(of string) string { return `[` + strings.Repeat(of+`,`, random.IntN(900)) + of + `]` }
	written := []string{
		joined + ` == ` + joined, joined + ` != []`, `1 in ` + joined, joined + `[` + strconv.Itoa(times-1) + `] == 0`,
		flat(`0`) + ` == ` + flat(`0`), `-1 in ` + flat(`device.driver`), flat(`[]`) + ` == ` + flat(`[]`),
		fmt.Sprintf(`%q%s == ""`, text(2000), strings.Repeat(pick(`.lowerAscii().upperAscii()`, `.trim()`,
			`.upperAscii()`), times)),
		strings.Repeat(fmt.Sprintf(`%q + `, text(40)), times) + `"" != ""`, strings.Repeat(`1+`, times*8) + `1 > 0`,
		fmt.Sprintf(`quantity("1e%d").%s`, random.IntN(1<<21), pick(`compareTo(quantity("1")) > 0`,
			`isGreaterThan(quantity("2"))`, `add(quantity("1")).sign() > 0`)),
		fmt.Sprintf(`isQuantity("1e-%d")`, random.IntN(1<<21)),
		fmt.Sprintf(`"ab".matches("%s" + "b")`, strings.Repeat(pick("(a|b)*", "[a-z]", "(?i)a.", "a?"), 1+random.IntN(12))),
		strings.Repeat("-", times) + `1 != 0`, `{` + strings.Repeat(`device.driver: 1,`, random.IntN(200)) + `"a": 1} != {}`,
		strings.Repeat(`true ? `, times/4) + `true` + strings.Repeat(` : false`, times/4),
	}
	var all []string
	for _, of := range []struct {
		kind  string
		texts []string
	}{{"selectors", cheap}, {"compiling", distinct}, {"loops", loops}, {"strings", strange},
		{"written", written}} {
		if kinds.has(of.kind) {
			all = append(all, of.texts...)
		}
	}
	if len(all) == 0 {
		return "true"
	}
	return all[random.IntN(len(all))]
}
