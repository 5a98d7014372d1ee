package classify

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"syscall"
)

// errnos are the errnos with a name of their own. All others are "syscall".
var errnos = map[syscall.Errno]string{
	syscall.EACCES:        "syscall.EACCES",
	syscall.EADDRINUSE:    "syscall.EADDRINUSE",
	syscall.EADDRNOTAVAIL: "syscall.EADDRNOTAVAIL",
	syscall.EAGAIN:        "syscall.EAGAIN",
	syscall.EBADF:         "syscall.EBADF",
	syscall.ECONNABORTED:  "syscall.ECONNABORTED",
	syscall.ECONNREFUSED:  "syscall.ECONNREFUSED",
	syscall.ECONNRESET:    "syscall.ECONNRESET",
	syscall.EHOSTUNREACH:  "syscall.EHOSTUNREACH",
	syscall.EINTR:         "syscall.EINTR",
	syscall.EIO:           "syscall.EIO",
	syscall.EMFILE:        "syscall.EMFILE",
	syscall.ENETUNREACH:   "syscall.ENETUNREACH",
	syscall.ENFILE:        "syscall.ENFILE",
	syscall.ENOENT:        "syscall.ENOENT",
	syscall.ENOMEM:        "syscall.ENOMEM",
	syscall.ENOSPC:        "syscall.ENOSPC",
	syscall.EPIPE:         "syscall.EPIPE",
	syscall.EROFS:         "syscall.EROFS",
	syscall.ETIMEDOUT:     "syscall.ETIMEDOUT",
}

// network knows the errors of syscall, net and TLS, all of which pass: a refused connection, a name that is
// not known yet or a certificate that has run out say nothing against the message.
func network(err error) Result {
	switch x := err.(type) {
	case syscall.Errno:
		if name, ok := errnos[x]; ok {
			return retry(name)
		}
		return retry("syscall")
	case *net.DNSError:
		return retry("net.dns")
	case *tls.CertificateVerificationError, tls.AlertError, tls.RecordHeaderError,
		x509.UnknownAuthorityError, x509.HostnameError, x509.CertificateInvalidError:
		return retry("tls")
	}
	return Result{}
}
