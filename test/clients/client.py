"""A config map is watched, created, patched and deleted with the Python client."""

import json
import os
import signal
import subprocess
import threading

from kubernetes import client, config, watch

NAMESPACE = "default"


def follow(api, since, seen, ready):
    """Puts what a watch tells into a list until the object is deleted."""
    stream = watch.Watch()
    ready.set()
    for event in stream.stream(api.list_namespaced_config_map, NAMESPACE, resource_version=since, timeout_seconds=60):
        data = event["object"].data or {}
        seen.append((event["type"], event["object"].metadata.name, data.get("step")))
        if event["type"] == "DELETED":
            stream.stop()


def main():
    server = subprocess.Popen(
        [os.environ["SETPOINT"], "server", "--data", "memory", "--listen", "127.0.0.1:0", "--output", "json", "--exit-with-parent", "--controllers="],
        stdout=subprocess.PIPE,
    )
    try:
        said = json.loads(server.stdout.readline())
        config.load_kube_config(said["kubeconfig"])
        api = client.CoreV1Api()
        since = api.list_namespaced_config_map(NAMESPACE).metadata.resource_version
        seen, ready = [], threading.Event()
        follower = threading.Thread(target=follow, args=(api, since, seen, ready))
        follower.start()
        ready.wait()
        api.create_namespaced_config_map(NAMESPACE, client.V1ConfigMap(metadata=client.V1ObjectMeta(name="story"), data={"step": "created"}))
        api.patch_namespaced_config_map("story", NAMESPACE, {"data": {"step": "patched"}})
        api.delete_namespaced_config_map("story", NAMESPACE)
        follower.join(60)
        want = [("ADDED", "story", "created"), ("MODIFIED", "story", "patched"), ("DELETED", "story", "patched")]
        assert seen == want, seen
        print("python: kubernetes", client.__version__ if hasattr(client, "__version__") else "", "ok", seen)
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0, server.returncode


main()
