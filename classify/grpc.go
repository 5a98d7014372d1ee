package classify

// grpcCodes are the status codes of gRPC in order of their numbers, which connect-go shares.
// Those that stand for the state of the server pass; those that stand for the request do not.
var grpcCodes = [...]Result{
	{},                     // OK is no error
	retry("grpc.canceled"), // 1
	retry("grpc.unknown"),  // 2
	poison("grpc.invalid_argument"),
	retry("grpc.deadline_exceeded"),
	poison("grpc.not_found"),
	poison("grpc.already_exists"),
	poison("grpc.permission_denied"),
	retry("grpc.resource_exhausted"),
	poison("grpc.failed_precondition"),
	retry("grpc.aborted"),
	poison("grpc.out_of_range"),
	poison("grpc.unimplemented"),
	retry("grpc.internal"),
	retry("grpc.unavailable"),
	poison("grpc.data_loss"),
	poison("grpc.unauthenticated"), // 16
}

// grpcVerdict judges a status code. Numbers that gRPC does not define are not known.
func grpcVerdict(code int64) Result {
	if code < 0 || code >= int64(len(grpcCodes)) {
		return Result{}
	}
	return grpcCodes[code]
}
