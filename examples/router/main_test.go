package main

import (
	"context"
	"log"
)

func Example() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
	// Unordered output:
	// mailed first
	// dead letter of mailing: no such address
	// mailed second
}
