package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

const errorsPackage = "go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

// errors has a line for every status that the package defines. They are
// variables, which only the source tells apart.
func errors() ([]string, error) {
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", errorsPackage).Output()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(strings.TrimSpace(string(dir)), "error.go")
	source, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		return nil, err
	}
	var lines []string
	ast.Inspect(source, func(node ast.Node) bool {
		spec, ok := node.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			return true
		}
		if code, text, ok := status(spec.Values[0]); ok {
			lines = append(lines, fmt.Sprintf("%s %s: %s", spec.Names[0].Name, code, text))
		}
		return true
	})
	return lines, nil
}

// status takes status.Error(codes.CODE, "TEXT") apart.
func status(value ast.Expr) (code, text string, ok bool) {
	call, ok := value.(*ast.CallExpr)
	if !ok || len(call.Args) != 2 {
		return "", "", false
	}
	selector, isCode := call.Args[0].(*ast.SelectorExpr)
	literal, isText := call.Args[1].(*ast.BasicLit)
	if !isCode || !isText {
		return "", "", false
	}
	text, err := strconv.Unquote(literal.Value)
	return selector.Sel.Name, text, err == nil
}
