{{/*
The system-owned keys, which the scheduler and the agents trust. An account that may write one of them can take any GPU. Keys of users (nvidia.com/use-gputype, hami.io/enable-realtime-check, ...) and of operators
(hami.io/device-cordon) are not among them.
*/}}
{{- define "steward.podKeys" -}}
['hami.io/vgpu-node', 'hami.io/vgpu-time', 'hami.io/vgpu-devices-to-allocate', 'hami.io/vgpu-devices-allocated',
 'hami.io/vgpu-mig-allocations', 'hami.io/bind-time', 'hami.io/bind-phase', 'gpu-steward.io/epoch',
 'gpu-steward.io/claim-version', 'gpu-steward.io/lease', 'gpu-steward.io/placed-by', 'gpu-steward.io/evict']
{{- end }}

{{- define "steward.podLabels" -}}
['hami.io/vgpu-node']
{{- end }}

{{- define "steward.nodeKeys" -}}
['hami.io/node-nvidia-register', 'hami.io/node-nvidia-score', 'hami.io/node-nvidia-assume', 'hami.io/node-handshake',
 'hami.io/mutex.lock', 'gpu-steward.io/epoch']
{{- end }}

{{/*
The keys that an agent writes. The policies in guard/agent.yaml allow it no other key. The labels on its Node are those of GPU
feature discovery. No agent writes gpu-steward.io/guard-check-keys: see guard/keys.yaml.
*/}}
{{- define "steward.agentPodKeys" -}}
['hami.io/vgpu-node', 'hami.io/vgpu-devices-to-allocate', 'hami.io/vgpu-devices-allocated', 'hami.io/bind-phase',
 'gpu-steward.io/placed-by', 'gpu-steward.io/evict']
{{- end }}

{{- define "steward.agentNodeKeys" -}}
['hami.io/node-nvidia-register', 'hami.io/node-nvidia-score', 'hami.io/node-handshake', 'hami.io/mutex.lock',
 'ai.centaurus.io/gpu-static', 'gpu-steward.io/guard-check-keys']
{{- end }}

{{/*
Whether a key is that of an annotation about the load of one GPU, which has the GPU's index. The other keys of Alnair's domain belong
to its device plugin and its scheduler.
*/}}
{{- define "steward.agentNodePatterns" -}}
(key.matches('^ai[.]centaurus[.]io/gpu-[0-9]+$') || key.matches('^ai[.]centaurus[.]io/GPU-[0-9]+-job-type$')
 || key.matches('^ai[.]centaurus[.]io/GPU-[0-9]+-mem-util-max$') || key.matches('^gpu-steward[.]io/gpu-[0-9]+-profile$'))
{{- end }}

{{- define "steward.agentNodeLabels" -}}
['nvidia.com/gpu.present', 'nvidia.com/gpu.count', 'nvidia.com/gpu.product', 'nvidia.com/gpu.memory',
 'nvidia.com/gpu.family', 'nvidia.com/gpu.compute.major', 'nvidia.com/gpu.compute.minor', 'nvidia.com/gpu.replicas',
 'nvidia.com/gpu.sharing-strategy', 'nvidia.com/mig.capable', 'nvidia.com/mig.strategy',
 'nvidia.com/cuda.driver-version.full', 'nvidia.com/cuda.driver-version.major', 'nvidia.com/cuda.driver-version.minor',
 'nvidia.com/cuda.driver-version.revision', 'nvidia.com/cuda.driver.major', 'nvidia.com/cuda.driver.minor',
 'nvidia.com/cuda.driver.rev', 'nvidia.com/cuda.runtime-version.full', 'nvidia.com/cuda.runtime-version.major',
 'nvidia.com/cuda.runtime-version.minor', 'nvidia.com/cuda.runtime.major', 'nvidia.com/cuda.runtime.minor']
{{- end }}
