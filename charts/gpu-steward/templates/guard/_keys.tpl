{{/*
The system-owned keys: what the scheduler and the agents trust when they read it back. Whoever may write one of these may
take any GPU. Keys of users (nvidia.com/use-gputype, hami.io/enable-realtime-check, ...) and of operators
(hami.io/device-cordon) are not among them.
*/}}
{{- define "steward.podKeys" -}}
['hami.io/vgpu-node', 'hami.io/vgpu-time', 'hami.io/vgpu-devices-to-allocate', 'hami.io/vgpu-devices-allocated',
 'hami.io/vgpu-mig-allocations', 'hami.io/bind-time', 'hami.io/bind-phase', 'gpu-steward.io/epoch',
 'gpu-steward.io/placed-by', 'gpu-steward.io/evict']
{{- end }}

{{- define "steward.podLabels" -}}
['hami.io/vgpu-node']
{{- end }}

{{- define "steward.nodeKeys" -}}
['hami.io/node-nvidia-register', 'hami.io/node-nvidia-score', 'hami.io/node-nvidia-assume', 'hami.io/node-handshake',
 'hami.io/mutex.lock', 'gpu-steward.io/epoch']
{{- end }}
