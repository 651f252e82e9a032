#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Proves what a user can check of a release, as far as that is possible without GitHub and a registry:
#
#   run.sh BUILD RELEASE
#
# BUILD has release/RELEASE. SHA256SUMS is signed by a key of this run, and verified by the
# commands of SECURITY.md. krew installs the kubectl plugin from its archive. publish.sh runs with stand-ins for the
# programs that write to servers. govulncheck looks for known vulnerabilities in what is shipped.
set -eu
cd "$(dirname "$0")/../../.."
build=$(realpath "$1")
release=$2
dir=$build/release/$release
[ -e "$dir/SHA256SUMS" ] || {
	echo "supply-chain: there is no $dir: build the release with: make release-artifacts RELEASE=$release" >&2
	exit 1
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
say() { echo "supply-chain: $1"; }
fail() {
	say "$1" >&2
	exit 1
}

# refused WHAT REASON COMMAND… holds that the command fails, and says the reason.
refused() {
	what=$1 reason=$2
	shift 2
	! "$@" >"$work/said" 2>&1 || fail "$what was not refused: $(cat "$work/said")"
	grep -q "$reason" "$work/said" || fail "$what was refused for another reason than \"$reason\": $(cat "$work/said")"
	say "$what is refused: $(grep -m 1 "$reason" "$work/said")"
}

cp -r "$dir" "$work/files"
for key in key other; do
	ssh-keygen -q -t ed25519 -N '' -C '' -f "$work/$key"
done
echo "maintainers namespaces=\"file\" $(cat "$work/key.pub")" >"$work/files/allowed_signers"
sed -n '/^ssh-keygen /,/^```/p' SECURITY.md | grep -v '^```' >"$work/commands"
[ "$(wc -l <"$work/commands")" -eq 2 ] || fail "SECURITY.md has other commands than two from \"ssh-keygen\" on"
sign() { ssh-keygen -q -Y sign -n file -f "$1" "$work/files/SHA256SUMS"; }
verify() { (cd "$work/files" && sh -eu "$work/commands"); }
sign "$work/key"
verify >"$work/said" || fail "the release cannot be verified: $(cat "$work/said")"
say "the commands of SECURITY.md verify the release: $(tail -n 1 "$work/said")"
plugin=$work/files/kubectl-inspect-cgpu-$release-linux-amd64.tar.gz
printf x >>"$plugin"
refused "a file that was changed" "linux-amd64.tar.gz: FAILED" verify
truncate --size=-1 "$plugin"
sed -i '1s/^./x/' "$work/files/SHA256SUMS"
refused "a list of checksums that was changed" "incorrect signature" verify
cp "$dir/SHA256SUMS" "$work/files/"
rm "$work/files/SHA256SUMS.sig"
sign "$work/other"
refused "a signature by another key" "Could not verify signature" verify

# A krew of its own, which installs for this machine alone. With an archive it asks no server.
mkdir "$work/krew"
KREW_ROOT=$work/krew go run sigs.k8s.io/krew/cmd/krew@v0.4.4 install --manifest="$dir/inspect-cgpu.yaml" \
	--archive="$dir/kubectl-inspect-cgpu-$release-$(go env GOOS)-$(go env GOARCH).tar.gz" 2>"$work/said" ||
	fail "krew does not install the plugin: $(cat "$work/said")"
version=$("$work/krew/bin/kubectl-inspect_cgpu" --version)
case $version in
*"$release"*) say "krew installed the plugin of its archive: $version" ;;
*) fail "krew installed a plugin that calls itself $version, not $release" ;;
esac

# Programs that write to servers say what they were told; skopeo and helm give digests, as the real ones.
mkdir "$work/bin"
cat >"$work/bin/stand-in" <<'EOF'
#!/bin/sh
echo "$(basename "$0") $*" >>"$TOLD"
case $0 in
*/skopeo) printf sha256:1111 >"$4" ;;
*/helm) echo "Digest: sha256:2222" ;;
esac
EOF
chmod +x "$work/bin/stand-in"
for program in skopeo helm cosign gh; do
	ln -s stand-in "$work/bin/$program"
done
# A directory of that name: publish.sh calls the release by it.
mkdir "$work/publish"
cp -r "$dir" "$work/publish/$release"
TOLD=$work/told PATH=$work/bin:$PATH deployments/release/publish.sh "$work/publish/$release" registry.example/gpushare
for line in "cosign sign --yes registry.example/gpushare/dra-driver-gpushare@sha256:1111" \
	"cosign sign --yes registry.example/gpushare/charts/dra-driver-gpushare@sha256:2222" \
	"cosign sign-blob --yes --bundle "; do
	grep -q "^$line" "$work/told" || fail "publish.sh did not run: $line: $(cat "$work/told")"
done
grep -q "^gh release create $release --draft .*/SHA256SUMS" "$work/told" || fail "no draft: $(cat "$work/told")"
say "publish.sh pushes, signs by digest, and drafts $release (with stand-ins for skopeo, helm, cosign and gh)"

go build -C tests/tools -o "$build/bin/govulncheck" golang.org/x/vuln/cmd/govulncheck
# known MODULE DATABASE looks for vulnerabilities that the database knows of code that the module calls.
known() { "$build/bin/govulncheck" -db "$2" -C "$1" -tags "$tags" ./...; }
tags=$(go env GOFLAGS | sed -n 's/.*-tags[= ]\([^ ]*\).*/\1/p')
# It finds what a database knows: here that os.ReadFile is vulnerable, which deployments/release calls.
refused "a module with a known vulnerability" "affected by 1 vulnerability" known deployments/release \
	"file://$PWD/tests/suites/supplychain/testdata/database"
for module in . deployments/container/cdi-hook; do
	if known "$module" https://vuln.go.dev >"$work/said" 2>&1; then
		say "govulncheck $module: $(tail -n 1 "$work/said")"
	elif grep -q '^govulncheck: fetching vulnerabilities' "$work/said"; then
		say "not run: govulncheck $module: its database cannot be reached: $(cat "$work/said")"
	else
		fail "govulncheck $module: $(cat "$work/said")"
	fi
done
