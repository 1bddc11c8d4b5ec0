package probe

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// health asks a gRPC server's health service.
func health(ctx context.Context, address, service string, timeout time.Duration) answer {
	fail := func(format string, args ...any) answer {
		return answer{outcome: failure, output: fmt.Sprintf(format, args...)}
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithUserAgent("kube-probe/1.36"), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return dialer().DialContext(ctx, "tcp", addr)
		}))
	if err != nil {
		return fail("error: failed to connect service at %q: %+v", address, err)
	}
	defer func() { _ = conn.Close() }()
	conn.Connect()
	for state := conn.GetState(); state != connectivity.Ready; state = conn.GetState() {
		if !conn.WaitForStateChange(ctx, state) {
			return fail("timeout: failed to connect service %q within %v: %+v", address, timeout, ctx.Err())
		}
		conn.Connect()
	}
	res, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: service})
	switch s, _ := status.FromError(err); {
	case err == nil && res.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING:
		return answer{outcome: success}
	case err == nil:
		return fail("service unhealthy (responded with %q)", res.GetStatus().String())
	case s.Code() == codes.Unimplemented:
		return fail("error: this server does not implement the grpc health protocol (grpc.health.v1.Health): %s", s.Message())
	case s.Code() == codes.DeadlineExceeded:
		return fail("timeout: health rpc did not complete within %v", timeout)
	default:
		return fail("error: health rpc probe failed: %+v", err)
	}
}
