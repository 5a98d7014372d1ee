package classify

// sqlStates are the SQLSTATE codes with a name of their own: those that an operator looks for.
// Others are named by their class.
var sqlStates = named("sql.",
	"08000", "08001", "08003", "08004", "08006", "08007", "08P01",
	"22001", "22003", "22007", "22008", "22012", "22021", "22023", "22P02", "22P05",
	"23000", "23001", "23502", "23503", "23505", "23514", "23P01",
	"25006", "25P02", "25P03", "25P04",
	"28000", "28P01",
	"40001", "40002", "40003", "40P01",
	"42501", "42601", "42703", "42804", "42883", "42P01",
	"53000", "53100", "53200", "53300", "53400",
	"55000", "55006", "55P03",
	"57014", "57P01", "57P02", "57P03", "57P04", "57P05",
	"58000", "58030", "58P01",
	"P0001", "XX000", "XX001", "XX002",
)

// sqlClasses are the classes of codes that have a name: those of the SQL standard and of PostgreSQL.
var sqlClasses = named("sql.",
	"01", "02", "03", "08", "09", "0A", "0B", "0F", "0L", "0P", "0Z", "20", "21", "22", "23", "24", "25", "26",
	"27", "28", "2B", "2D", "2F", "34", "38", "39", "3B", "3D", "3F", "40", "42", "44", "53", "54", "55", "57",
	"58", "72", "F0", "HV", "HY", "P0", "XX",
)

func named(prefix string, codes ...string) map[string]string {
	names := make(map[string]string, len(codes))
	for _, code := range codes {
		names[code] = prefix + code
	}
	return names
}

// sqlState knows errors that have a SQLSTATE.
func sqlState(err error) Result {
	if x, ok := err.(interface{ SQLState() string }); ok {
		return sqlVerdict(x.SQLState())
	}
	return Result{}
}

// sqlVerdict judges a SQLSTATE: the first two characters are its class. The codes are PostgreSQL's
// (its documentation, appendix A), the classes those of the SQL standard.
func sqlVerdict(state string) Result {
	if len(state) != 5 {
		return Result{}
	}
	name, ok := sqlStates[state]
	if !ok {
		if name, ok = sqlClasses[state[:2]]; !ok {
			name = "sql.other"
		}
	}
	switch state[:2] {
	case "22": // data exception
		return poison(name)
	case "23": // integrity constraint violation
		if state == "23503" { // foreign key: the parent may come later
			return retry(name)
		}
		return poison(name)
	case "08", // connection exception
		"28", // invalid authorisation: a password is being changed, not the message's fault
		"40", // transaction rollback: serialisation failure, deadlock
		"53", // insufficient resources
		"55", // object not in prerequisite state: lock not available
		"57", // operator intervention: shutdown, cancel, cannot connect now
		"58", // system error: I/O
		"XX": // internal error
		return retry(name)
	}
	switch state {
	case "25006", // read-only transaction: the server has become a standby
		"25P02": // the transaction is aborted: a fresh one may not be
		return retry(name)
	}
	return Result{ErrorType: name}
}

// mysqlRetry are the numbers of MySQL and MariaDB that pass though their SQLSTATE does not say so.
var mysqlRetry = map[uint16]string{
	1021: "mysql.1021", // disk full
	1037: "mysql.1037", // out of memory
	1040: "mysql.1040", // too many connections
	1041: "mysql.1041", // out of resources
	1053: "mysql.1053", // server shutdown in progress
	1114: "mysql.1114", // the table is full
	1203: "mysql.1203", // too many connections of the user
	1205: "mysql.1205", // lock wait timeout
	1213: "mysql.1213", // deadlock
	1216: "mysql.1216", // foreign key, child row
	1217: "mysql.1217", // foreign key, parent row
	1226: "mysql.1226", // a resource limit of the user
	1290: "mysql.1290", // running with --read-only
	1317: "mysql.1317", // query interrupted
	1451: "mysql.1451", // foreign key, parent row
	1452: "mysql.1452", // foreign key, child row: the parent may come later
	1614: "mysql.1614", // XA deadlock
	1792: "mysql.1792", // read-only transaction
	1836: "mysql.1836", // read-only mode
	3024: "mysql.3024", // execution time exceeded
	3572: "mysql.3572", // NOWAIT on a locked row
}

// mysqlPoison are the numbers that are permanent though their SQLSTATE does not say so, and those that
// an operator looks for.
var mysqlPoison = map[uint16]string{
	1048: "mysql.1048", // null in a column that must not be
	1062: "mysql.1062", // duplicate key
	1264: "mysql.1264", // out of range
	1265: "mysql.1265", // data truncated
	1292: "mysql.1292", // incorrect value
	1364: "mysql.1364", // field without a default
	1366: "mysql.1366", // incorrect value for a column
	1406: "mysql.1406", // data too long
	3140: "mysql.3140", // invalid JSON text
	3819: "mysql.3819", // check constraint (MySQL)
	4025: "mysql.4025", // check constraint (MariaDB)
}

// mysqlVerdict judges an error number of MySQL or MariaDB, and the SQLSTATE that came with it.
func mysqlVerdict(number uint16, state string) Result {
	if name, ok := mysqlRetry[number]; ok {
		return retry(name)
	}
	if name, ok := mysqlPoison[number]; ok {
		return poison(name)
	}
	return sqlVerdict(state)
}

// sqliteVerdict judges a result code of SQLite, primary or extended (sqlite.org/rescode.html).
func sqliteVerdict(code int) Result {
	if code == 787 { // SQLITE_CONSTRAINT_FOREIGNKEY: the parent may come later
		return retry("sqlite.foreign_key")
	}
	switch code & 0xff { // the primary code
	case 5:
		return retry("sqlite.busy")
	case 6:
		return retry("sqlite.locked")
	case 7:
		return retry("sqlite.nomem")
	case 8:
		return retry("sqlite.readonly")
	case 9:
		return retry("sqlite.interrupt")
	case 10:
		return retry("sqlite.ioerr")
	case 13:
		return retry("sqlite.full")
	case 14:
		return retry("sqlite.cantopen")
	case 15:
		return retry("sqlite.protocol")
	case 17:
		return retry("sqlite.schema")
	case 18:
		return poison("sqlite.toobig")
	case 19:
		return poison("sqlite.constraint")
	case 20:
		return poison("sqlite.mismatch")
	}
	return Result{ErrorType: "sqlite.other"}
}
