package load

import (
	"errors"
	"fmt"
	"reflect"
)

// Strict reads the one YAML or JSON document of in into v, a pointer. Unknown fields
// and wrong types are errors, every one with its line.
func Strict(in Input, v any) error {
	var docs []document
	var errs []error
	documents(in.Name, in.Data, func(d document, p *Problem) bool {
		if p != nil {
			errs = append(errs, errors.New(p.String()))
		} else {
			docs = append(docs, d)
		}
		return len(errs)+len(docs) < 10
	})
	if len(docs) > 1 {
		errs = append(errs, fmt.Errorf("%s: holds more than one document", in.Name))
	}
	if len(docs) == 1 {
		d := &decoder{file: in.Name, offset: docs[0].offset, strict: true}
		d.decode(docs[0].node, reflect.ValueOf(v).Elem(), nil, 0)
		for _, p := range d.problems {
			if p.Severity == Error {
				errs = append(errs, errors.New(p.String()))
			}
		}
	}
	return errors.Join(errs...)
}
