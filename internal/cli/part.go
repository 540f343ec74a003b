package cli

import (
	"cmp"
	"reflect"
	"strings"
)

// Part returns the part of a grammar of kong that a command line needs which begins with the name of a command: a pointer to a struct that has that command
// alone, and the flags of all commands. The grammar is a struct whose commands have names of one word. Part returns nil when it has no such command, or a hidden one,
// which may be about the others.
//
// kong takes a small part of the time for it that it takes for all: there are over a hundred commands, and that was most of the processor time of a short one.
func Part[G any](name string) any {
	var fields []reflect.StructField
	found := false
	for _, field := range reflect.VisibleFields(reflect.TypeFor[G]()) {
		_, isCommand := field.Tag.Lookup("cmd")
		_, isHidden := field.Tag.Lookup("hidden")
		switch {
		case field.Anonymous: // its fields are visible themselves
		case !isCommand:
			fields = append(fields, reflect.StructField{Name: field.Name, Type: field.Type, Tag: field.Tag})
		case cmp.Or(field.Tag.Get("name"), strings.ToLower(field.Name)) == name && !isHidden:
			fields = append(fields, reflect.StructField{Name: field.Name, Type: field.Type, Tag: field.Tag})
			found = true
		}
	}
	if !found {
		return nil
	}
	return reflect.New(reflect.StructOf(fields)).Interface()
}
