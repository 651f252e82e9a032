// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	celast "github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// readsUUID says whether what an expression gives can depend on the UUID of a
// card. It is false only where the expression reads single attributes of the
// device, each by a name that stands there and is another one; then cards that
// differ in nothing but their UUID need be looked at once.
func readsUUID(compiled cel.CompilationResult) bool {
	parsed, issues := compiled.Environment.Parse(compiled.Expression)
	return issues.Err() != nil || !avoidsUUID(parsed.NativeRep().Expr())
}

// The fields of the variable "device" in selectors.
const (
	deviceVariable  = "device"
	attributesField = "attributes"
)

func avoidsUUID(e celast.Expr) bool {
	if name, ok := attributeName(e); ok {
		return name != string(v1alpha1.AttrUUID) && name != string(v1alpha1.AttrParentUUID)
	}
	if field, ok := deviceField(e); ok {
		return field != attributesField
	}
	switch e.Kind() {
	case celast.IdentKind:
		return e.AsIdent() != deviceVariable
	case celast.LiteralKind:
		return true
	case celast.SelectKind:
		return avoidsUUID(e.AsSelect().Operand())
	case celast.CallKind:
		call := e.AsCall()
		return (!call.IsMemberFunction() || avoidsUUID(call.Target())) && allAvoidUUID(call.Args())
	case celast.ListKind:
		return allAvoidUUID(e.AsList().Elements())
	case celast.ComprehensionKind:
		c := e.AsComprehension()
		return allAvoidUUID([]celast.Expr{c.IterRange(), c.AccuInit(), c.LoopCondition(), c.LoopStep(), c.Result()})
	default:
		return false
	}
}

func allAvoidUUID(expressions []celast.Expr) bool {
	for _, e := range expressions {
		if !avoidsUUID(e) {
			return false
		}
	}
	return true
}

// attributeName is the name that device.attributes["domain"].name reads, in any
// of the ways to write it.
func attributeName(e celast.Expr) (string, bool) {
	domain, name, ok := member(e)
	if !ok {
		return "", false
	}
	attributes, _, ok := member(domain)
	if !ok {
		return "", false
	}
	field, ok := deviceField(attributes)
	return name, ok && field == attributesField
}

// deviceField is the name of a field of the device.
func deviceField(e celast.Expr) (string, bool) {
	device, name, ok := member(e)
	return name, ok && device.Kind() == celast.IdentKind && device.AsIdent() == deviceVariable
}

// member splits x.name, x["name"], x.?name and x[?"name"].
func member(e celast.Expr) (of celast.Expr, name string, ok bool) {
	switch e.Kind() {
	case celast.SelectKind:
		return e.AsSelect().Operand(), e.AsSelect().FieldName(), true
	case celast.CallKind:
		call := e.AsCall()
		switch call.FunctionName() {
		case operators.Index, operators.OptIndex, operators.OptSelect:
		default:
			return nil, "", false
		}
		args := call.Args()
		if len(args) != 2 || args[1].Kind() != celast.LiteralKind {
			return nil, "", false
		}
		literal, isString := args[1].AsLiteral().(types.String)
		return args[0], string(literal), isString
	default:
		return nil, "", false
	}
}
