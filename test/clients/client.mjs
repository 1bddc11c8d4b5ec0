// A config map is watched, created, patched and deleted with the JavaScript client.
import assert from 'node:assert';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { CoreV1Api, KubeConfig, PatchStrategy, Watch, setHeaderOptions } from '@kubernetes/client-node';

const namespace = 'default';
const server = spawn(process.env.SETPOINT,
  ['server', '--data', 'memory', '--listen', '127.0.0.1:0', '--output', 'json', '--exit-with-parent', '--controllers='],
  { stdio: ['ignore', 'pipe', 'inherit'] });
const ended = once(server, 'exit');
try {
  const [line] = await once(createInterface({ input: server.stdout }), 'line');
  const config = new KubeConfig();
  config.loadFromFile(JSON.parse(line).kubeconfig);
  const api = config.makeApiClient(CoreV1Api);
  const list = await api.listNamespacedConfigMap({ namespace });

  const seen = [];
  let done;
  const deleted = new Promise((resolve, reject) => { done = { resolve, reject }; });
  const request = await new Watch(config).watch(`/api/v1/namespaces/${namespace}/configmaps`, { resourceVersion: list.metadata.resourceVersion },
    (type, object) => {
      seen.push([type, object.metadata.name, object.data?.step]);
      if (type === 'DELETED') done.resolve();
    },
    (error) => { if (error && error.name !== 'AbortError') done.reject(error); });

  await api.createNamespacedConfigMap({ namespace, body: { metadata: { name: 'story' }, data: { step: 'created' } } });
  await api.patchNamespacedConfigMap({ namespace, name: 'story', body: { data: { step: 'patched' } } },
    setHeaderOptions('Content-Type', PatchStrategy.MergePatch));
  await api.deleteNamespacedConfigMap({ namespace, name: 'story' });
  await deleted;
  request.abort();
  assert.deepStrictEqual(seen, [['ADDED', 'story', 'created'], ['MODIFIED', 'story', 'patched'], ['DELETED', 'story', 'patched']]);
  console.log('node: @kubernetes/client-node ok', JSON.stringify(seen));
} finally {
  server.kill('SIGTERM');
  const [code] = await ended;
  assert.strictEqual(code, 0);
}
