//go:build linux

package process

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"setpoint.dev/setpoint/node/disk"
	"setpoint.dev/setpoint/node/process/image"
)

// img is an image of this node; without a Root it is the host's files.
type img struct{ *image.Image }

// ref is what pins the image: a name with its digest, or its ID.
func (im *img) ref() string {
	if digests := im.Digests(); len(digests) > 0 {
		return digests[0]
	}
	return im.ID
}

// host is the image that is the host's files, under a name.
func host(name string) *img {
	return &img{&image.Image{ID: HostImage, Names: []string{name}}}
}

// imageOf finds an image that is there.
func (r *Runtime) imageOf(spec *runtimeapi.ImageSpec) (*img, error) {
	name := spec.GetImage()
	if r.isHost(name) {
		return host(name), nil
	}
	im, err := r.images.Get(name)
	if err != nil {
		return nil, status.Errorf(codes.NotFound, "failed to resolve image %q: %v", name, err)
	}
	return &img{im}, nil
}

// isHost says whether a name means the host's files.
func (r *Runtime) isHost(name string) bool {
	return r.cfg.HostImages || name == HostImage || name == HostImage+":latest" || name == "docker.io/library/"+HostImage+":latest"
}

// imageService serves CRI's calls about images.
type imageService struct {
	runtimeapi.UnimplementedImageServiceServer
	r *Runtime
}

// describe is an image in CRI's words.
func (s *imageService) describe(im *img) *runtimeapi.Image {
	out := &runtimeapi.Image{Id: im.ID, RepoTags: im.Names, RepoDigests: im.Digests(), Size: im.Size}
	if im.Root == "" {
		out.Pinned, out.Size = true, 1 // Compat: an image without a size is taken for broken
		out.Uid = &runtimeapi.Int64Value{Value: int64(os.Geteuid())}
		return out
	}
	user, _, _ := strings.Cut(im.User, ":")
	if uid, err := strconv.ParseInt(cmp.Or(user, "0"), 10, 64); err == nil {
		out.Uid = &runtimeapi.Int64Value{Value: uid}
	} else {
		out.Username = user
	}
	return out
}

// ListImages gives all images that are there, or one.
func (s *imageService) ListImages(_ context.Context, req *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	if name := req.GetFilter().GetImage().GetImage(); name != "" {
		im, err := s.r.imageOf(req.GetFilter().GetImage())
		if err != nil {
			return &runtimeapi.ListImagesResponse{}, nil //nolint:nilerr // there is none
		}
		return &runtimeapi.ListImagesResponse{Images: []*runtimeapi.Image{s.describe(im)}}, nil
	}
	all := []*runtimeapi.Image{s.describe(host(HostImage))}
	for _, im := range s.r.images.List() {
		all = append(all, s.describe(&img{im}))
	}
	return &runtimeapi.ListImagesResponse{Images: all}, nil
}

// ImageStatus gives an image; none if it is not there.
func (s *imageService) ImageStatus(_ context.Context, req *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	im, err := s.r.imageOf(req.GetImage())
	if err != nil {
		return &runtimeapi.ImageStatusResponse{}, nil //nolint:nilerr // there is none
	}
	resp := &runtimeapi.ImageStatusResponse{Image: s.describe(im)}
	if req.GetVerbose() {
		resp.Info = map[string]string{"root": cmp.Or(im.Root, "the host's files")}
	}
	return resp, nil
}

// PullImage unpacks an image whose archive lies in the node's folder of images.
func (s *imageService) PullImage(_ context.Context, req *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	name := req.GetImage().GetImage()
	if name == "" {
		return nil, status.Error(codes.InvalidArgument, "failed to parse image reference \"\": invalid reference format")
	}
	if s.r.isHost(name) {
		return &runtimeapi.PullImageResponse{ImageRef: HostImage}, nil
	}
	im, err := s.r.images.Pull(name)
	switch {
	case errors.Is(err, image.ErrNotFound):
		return nil, status.Errorf(codes.NotFound, "failed to pull and unpack image %q: %v (this node pulls from %s)", name, err, filepath.Join(s.r.cfg.Dir, "images"))
	case err != nil:
		return nil, status.Errorf(codes.Unknown, "%v", err)
	}
	return &runtimeapi.PullImageResponse{ImageRef: im.ID}, nil
}

// RemoveImage removes what was unpacked of an image; its archive stays.
func (s *imageService) RemoveImage(_ context.Context, req *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	name := req.GetImage().GetImage()
	if s.r.isHost(name) {
		return &runtimeapi.RemoveImageResponse{}, nil
	}
	if im, err := s.r.images.Get(name); err == nil && s.r.used(im.ID) {
		return nil, status.Errorf(codes.FailedPrecondition, "failed to remove image %q: a container uses it", name)
	}
	return &runtimeapi.RemoveImageResponse{}, s.r.images.Remove(name)
}

// used says whether a container that runs, or may, needs an image's files.
func (r *Runtime) used(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.containers {
		if c.Image == id && c.exit == nil {
			return true
		}
	}
	return false
}

// ImageFsInfo says how much room images and containers take.
func (s *imageService) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	usage := func(dir string, bytes, files uint64) []*runtimeapi.FilesystemUsage {
		return []*runtimeapi.FilesystemUsage{{
			Timestamp: time.Now().UnixNano(), FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: dir},
			UsedBytes: &runtimeapi.UInt64Value{Value: bytes}, InodesUsed: &runtimeapi.UInt64Value{Value: files},
		}}
	}
	var bytes, files uint64
	for _, im := range s.r.images.List() {
		bytes, files = bytes+im.Size, files+im.Entries
	}
	containers := filepath.Join(s.r.cfg.Dir, "containers")
	cb, cf := disk.Used(containers)
	return &runtimeapi.ImageFsInfoResponse{
		ImageFilesystems:     usage(filepath.Join(s.r.cfg.Dir, "unpacked"), bytes, files),
		ContainerFilesystems: usage(containers, cb, cf),
	}, nil
}
