// Package postgres is a message broker in a PostgreSQL database.
package postgres
