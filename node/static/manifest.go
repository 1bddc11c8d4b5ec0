package static

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// read returns the pods of a file, ready to run.
func (f *Folder) read(path string) ([]*corev1.Pod, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	documents := utilyaml.NewYAMLReader(bufio.NewReader(io.LimitReader(file, maxFile)))
	var pods []*corev1.Pod
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return pods, nil
		}
		if err != nil {
			return nil, err
		}
		found, err := parse(document)
		if err != nil {
			return nil, err
		}
		for _, pod := range found {
			if err := f.adopt(pod, path); err != nil {
				return nil, err
			}
			pods = append(pods, pod)
		}
	}
}

// parse takes a pod or a list of pods from a document; an empty one has none.
func parse(document []byte) ([]*corev1.Pod, error) {
	data, err := yaml.YAMLToJSON(document)
	if err != nil {
		return nil, err
	}
	if text := bytes.TrimSpace(data); len(text) == 0 || bytes.Equal(text, []byte("null")) {
		return nil, nil
	}
	var kind metav1.TypeMeta
	if err := json.Unmarshal(data, &kind); err != nil {
		return nil, err
	}
	switch kind.Kind {
	case "Pod":
		pod := &corev1.Pod{}
		return []*corev1.Pod{pod}, yaml.UnmarshalStrict(data, pod)
	case "PodList", "List":
		var list struct {
			Items []runtime.RawExtension `json:"items"`
		}
		if err := json.Unmarshal(data, &list); err != nil {
			return nil, err
		}
		var pods []*corev1.Pod
		for _, item := range list.Items {
			pod := &corev1.Pod{}
			if err := yaml.UnmarshalStrict(item.Raw, pod); err != nil {
				return nil, err
			}
			pods = append(pods, pod)
		}
		return pods, nil
	}
	return nil, fmt.Errorf("object of kind %q is neither a Pod nor a PodList", kind.Kind)
}

// adopt makes a pod of a manifest one of this node.
func (f *Folder) adopt(pod *corev1.Pod, path string) error {
	if pod.UID == "" {
		text, err := json.Marshal(pod)
		if err != nil {
			return err
		}
		hash := fnv.New128a()
		_, _ = fmt.Fprintf(hash, "%shost:%sfile:%s", text, f.cfg.Node, path)
		pod.UID = types.UID(hex.EncodeToString(hash.Sum(nil)))
	}
	pod.Name += "-" + strings.ToLower(f.cfg.Node)
	if pod.Namespace == "" {
		pod.Namespace = metav1.NamespaceDefault
	}
	pod.Spec.NodeName = f.cfg.Node
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[Hash] = string(pod.UID)
	pod.Annotations[Source] = "file"
	// A node in trouble keeps what it was told to run.
	pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute})
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending}
	if err := f.cfg.Default(pod); err != nil {
		return fmt.Errorf("invalid pod %s: %w", pod.Name, err)
	}
	return nil
}
