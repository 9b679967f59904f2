// golden writes what etcd's own Go code says about the API, for the tests of
// the crate pontoon-api to compare with:
//
//	surface.txt   every service, message, field and enum value, with numbers
//	requests.txt  requests as the real client encodes them
//	errors.txt    the statuses that etcd's packages define
//
// To write them anew, in this module's directory: go run ./golden ../api/tests/golden
package main

import (
	"fmt"
	"log"
	"os"
	"path/filepath"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: golden DIRECTORY")
	}
	for name, lines := range map[string]func() ([]string, error){
		"surface.txt":  surface,
		"requests.txt": requests,
		"errors.txt":   errors,
	} {
		if err := write(filepath.Join(os.Args[1], name), lines); err != nil {
			log.Fatalf("%s: %v", name, err)
		}
	}
}

func write(path string, lines func() ([]string, error)) error {
	all, err := lines()
	if err != nil {
		return err
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	for _, line := range all {
		if _, err := fmt.Fprintln(file, line); err != nil {
			return err
		}
	}
	return file.Close()
}
