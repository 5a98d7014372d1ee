// Package schema owns Headrace's tables: the migrations of each database, their versions, and the
// runner that applies them under a lock. It knows no driver; a store lends it a [Conn].
//
// The migrations are plain .sql files in this directory, one folder per dialect. A file does one
// version's change and records its number in headrace_migration, so that people who apply the files by
// hand (see [Files]) are recognised and [Migrate] has nothing left to do.
//
// Changes expand first and contract later: version n may add tables, columns with defaults and indexes;
// what version n-1 still uses goes at n+1 at the earliest. So a program runs on a schema one version
// newer than its own, which is what a rolling deploy and its rollback need, and refuses one two
// versions newer.
package schema
