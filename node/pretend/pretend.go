// Package pretend is a node that runs nothing: pods become Running and Ready on
// it, and go when they are deleted.
//
// In comes a handler of the API; out come a Node that is ready, its lease, and
// what a kubelet would write about its pods. It is for tests of
// those who wait for pods. A pod that is on another node, or that has ended or
// been given a status by the test, is left alone. What always holds: what to do
// with a pod is decided by plan, from the pod alone.
package pretend

import (
	"context"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"setpoint.dev/setpoint/client"
)

// Name is what the node is called.
const Name = "setpoint"

// Compat: the pace of the lease is a kubelet's.
const (
	leaseSeconds = 40
	renewEvery   = 10 * time.Second
	workers      = 4
)

// Node is a node that runs nothing.
type Node struct {
	api    *client.Client
	logger *slog.Logger
	// given counts the addresses that pods were given.
	given atomic.Uint32
}

// New returns a node of the control plane behind a handler.
func New(handler http.Handler, logger *slog.Logger) *Node {
	return &Node{logger: logger, api: client.New(client.Config{
		Handler: handler, UserAgent: "kubelet/setpoint",
		User: &user.DefaultInfo{Name: "system:node:" + Name, Groups: []string{user.SystemPrivilegedGroup, user.NodesGroup, user.AllAuthenticated}},
	})}
}

// Run is the node until ctx ends.
func (n *Node) Run(ctx context.Context) error {
	k, err := n.api.Kubernetes()
	if err != nil {
		return err
	}
	var g errgroup.Group
	g.Go(func() error { n.beat(ctx, k); return nil })
	g.Go(func() error { return n.tend(ctx, k) })
	return g.Wait()
}

// beat keeps the node there and known to be alive.
func (n *Node) beat(ctx context.Context, k kubernetes.Interface) {
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	for {
		if err := register(ctx, k); err != nil && ctx.Err() == nil {
			n.logger.Warn("the pretended node is not registered yet", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// register makes the node, or says that it is still there.
func register(ctx context.Context, k kubernetes.Interface) error {
	if _, err := k.CoreV1().Nodes().Get(ctx, Name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		if _, err := k.CoreV1().Nodes().Create(ctx, describe(time.Now()), metav1.CreateOptions{}); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	if _, err := k.CoreV1().Nodes().UpdateStatus(ctx, describe(time.Now()), metav1.UpdateOptions{}); err != nil {
		return err
	}
	leases := k.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	name, seconds, now := Name, int32(leaseSeconds), metav1.NowMicro()
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: corev1.NamespaceNodeLease},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: &seconds, RenewTime: &now},
	}
	_, err := leases.Update(ctx, lease, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = leases.Create(ctx, lease, metav1.CreateOptions{})
	}
	return err
}

// describe is the node as it is now: ready, and larger than any test.
func describe(now time.Time) *corev1.Node {
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("1000"), corev1.ResourceMemory: resource.MustParse("10Ti"),
		corev1.ResourceEphemeralStorage: resource.MustParse("10Ti"), corev1.ResourcePods: resource.MustParse("100000"),
	}
	at := metav1.NewTime(now)
	condition := func(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason string) corev1.NodeCondition {
		return corev1.NodeCondition{Type: kind, Status: status, Reason: reason, Message: "nothing is run here", LastHeartbeatTime: at, LastTransitionTime: at}
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: Name, Labels: map[string]string{
			corev1.LabelHostname: Name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
		}},
		Status: corev1.NodeStatus{
			Capacity: room, Allocatable: room,
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: hostIP}, {Type: corev1.NodeHostName, Address: Name}},
			NodeInfo:  corev1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "amd64", KubeletVersion: "v1.36.3", ContainerRuntimeVersion: "pretend://1"},
			Conditions: []corev1.NodeCondition{
				condition(corev1.NodeReady, corev1.ConditionTrue, "KubeletReady"),
				condition(corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory"),
				condition(corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure"),
				condition(corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID"),
			},
		},
	}
}

// tend does with every pod what plan says, until ctx ends.
func (n *Node) tend(ctx context.Context, k kubernetes.Interface) error {
	factory, err := n.api.Informers()
	if err != nil {
		return err
	}
	defer factory.Shutdown()
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[cache.ObjectName]())
	pods := factory.Core().V1().Pods()
	see := func(obj any) {
		if pod, ok := obj.(*corev1.Pod); ok && plan(pod) != leave {
			queue.Add(cache.MetaObjectToName(pod))
		}
	}
	if _, err := pods.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: see, UpdateFunc: func(_, obj any) { see(obj) }}); err != nil {
		return err
	}
	factory.StartWithContext(ctx)
	var g errgroup.Group
	for range workers {
		g.Go(func() error { n.work(ctx, k, pods.Lister(), queue); return nil })
	}
	<-ctx.Done()
	queue.ShutDown()
	return g.Wait()
}

// work takes pods from the queue until it is shut down.
func (n *Node) work(ctx context.Context, k kubernetes.Interface, pods listers.PodLister, queue workqueue.TypedRateLimitingInterface[cache.ObjectName]) {
	for {
		name, ended := queue.Get()
		if ended {
			return
		}
		pod, err := pods.Pods(name.Namespace).Get(name.Name)
		if err == nil {
			err = n.act(ctx, k, pod, plan(pod))
		}
		switch {
		case err == nil, apierrors.IsNotFound(err):
			queue.Forget(name)
		case apierrors.IsConflict(err), ctx.Err() != nil:
			queue.AddRateLimited(name)
		default:
			n.logger.Warn("the pretended node failed with a pod", "pod", name, "error", err)
			queue.AddRateLimited(name)
		}
		queue.Done(name)
	}
}

func (n *Node) act(ctx context.Context, k kubernetes.Interface, pod *corev1.Pod, s step) error {
	pods := k.CoreV1().Pods(pod.Namespace)
	switch s {
	case run:
		_, err := pods.UpdateStatus(ctx, running(pod, n.address(pod), time.Now()), metav1.UpdateOptions{})
		return err
	case remove:
		now := int64(0)
		return pods.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now, Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	default:
		return nil
	}
}
