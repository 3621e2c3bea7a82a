# The control plane: keys, etcd, API server, controller manager, scheduler. All parts listen on one address of the cluster.
# shellcheck shell=bash

# issue NAME SUBJECT [SUBJECT-ALT-NAMES]: makes a key and a certificate of the cluster's CA
issue() {
  local keys=$state/keys
  openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$keys/$1.key" -subj "$2" -out "$keys/$1.csr" 2>/dev/null &&
    openssl x509 -req -in "$keys/$1.csr" -CA "$keys/ca.crt" -CAkey "$keys/ca.key" -days 30 -out "$keys/$1.crt" \
      -extfile <(printf 'extendedKeyUsage=serverAuth,clientAuth\n%s\n' "${3:+subjectAltName=$3}") 2>/dev/null
}

# kubeconfig NAME FILE: writes a kubeconfig with the certificate of this name
kubeconfig() {
  cat >"$2" <<Y
apiVersion: v1
kind: Config
current-context: cluster
clusters: [{name: cluster, cluster: {server: "https://$api_address:443", certificate-authority: $state/keys/ca.crt}}]
users: [{name: user, user: {client-certificate: $state/keys/$1.crt, client-key: $state/keys/$1.key}}]
contexts: [{name: cluster, context: {cluster: cluster, user: user}}]
Y
}

make_keys() {
  local keys=$state/keys
  (
    umask 077
    mkdir -p "$keys"
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$keys/ca.key" -out "$keys/ca.crt" -days 30 -subj "/CN=gpu-steward test cluster" 2>/dev/null &&
      openssl ecparam -name prime256v1 -genkey -noout -out "$keys/accounts.key" && openssl ec -in "$keys/accounts.key" -pubout -out "$keys/accounts.pub" 2>/dev/null &&
      issue apiserver "/CN=kube-apiserver" "IP:$api_address,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc" &&
      issue apiserver-to-kubelet "/CN=kube-apiserver-kubelet-client" &&
      # For people and for the tests' own calls, never for the program under test.
      issue admin "/O=system:masters/CN=admin" &&
      issue controller-manager "/CN=system:kube-controller-manager" &&
      issue scheduler "/CN=system:kube-scheduler"
  ) || fail "openssl could not make the keys under $keys"
  kubeconfig admin "$state/admin.kubeconfig"
  kubeconfig controller-manager "$state/controller-manager.kubeconfig"
  kubeconfig scheduler "$state/scheduler.kubeconfig"
}

# Lets the API server talk to kubelets, which `kubectl exec` and `kubectl logs` need.
kubelet_access() {
  kubectl create clusterrolebinding apiserver-to-kubelet --clusterrole system:kubelet-api-admin --user kube-apiserver-kubelet-client
}

define_control_plane() {
  local api=https://$api_address
  define_part etcd etcd --data-dir "$state/etcd" --listen-client-urls "http://$api_address:2379" --advertise-client-urls "http://$api_address:2379" \
    --listen-peer-urls "http://$api_address:2380" --initial-advertise-peer-urls "http://$api_address:2380" --initial-cluster "default=http://$api_address:2380" \
    --unsafe-no-fsync --log-level warn
  # One line for each request: tests count API calls from this log, by user and verb. They do not look into an older file, so one file has
  # room for an hour of the busiest test.
  printf 'apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n' >"$state/audit.yaml"
  define_part apiserver kube-apiserver --etcd-servers "http://$api_address:2379" --bind-address "$api_address" --secure-port 443 \
    --advertise-address "$api_address" --endpoint-reconciler-type none --service-cluster-ip-range "$service_range" --cert-dir "$state/keys" \
    --tls-cert-file "$state/keys/apiserver.crt" --tls-private-key-file "$state/keys/apiserver.key" --client-ca-file "$state/keys/ca.crt" \
    --kubelet-client-certificate "$state/keys/apiserver-to-kubelet.crt" --kubelet-client-key "$state/keys/apiserver-to-kubelet.key" \
    --kubelet-preferred-address-types InternalIP --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction \
    --service-account-issuer "https://kubernetes.default.svc" --service-account-key-file "$state/keys/accounts.pub" \
    --service-account-signing-key-file "$state/keys/accounts.key" --allow-privileged=true --event-ttl 1h \
    --audit-policy-file "$state/audit.yaml" --audit-log-path "$state/audit.log" --audit-log-maxsize 4000 --audit-log-maxbackup 2
  define_part controller-manager kube-controller-manager --kubeconfig "$state/controller-manager.kubeconfig" --bind-address "$api_address" --secure-port 10257 \
    --cert-dir "$state/keys/controller-manager" --service-account-private-key-file "$state/keys/accounts.key" --root-ca-file "$state/keys/ca.crt" \
    --cluster-signing-cert-file "$state/keys/ca.crt" --cluster-signing-key-file "$state/keys/ca.key" \
    --use-service-account-credentials=true --leader-elect=false --controllers '*,-nodeipam'
  define_part scheduler kube-scheduler --config "$state/scheduler.yaml" --bind-address "$api_address" --secure-port 10259 --cert-dir "$state/keys/scheduler" \
    --authorization-always-allow-paths /healthz,/readyz,/livez,/metrics
  write_scheduler_config "$1"
}

# Writes the scheduler's configuration; FILE adds profiles or extenders.
write_scheduler_config() {
  {
    printf 'apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n'
    printf 'clientConnection: {kubeconfig: %s, qps: 50, burst: 100}\nleaderElection: {leaderElect: false}\n' "$state/scheduler.kubeconfig"
    [ -z "$1" ] || cat "$1"
  } >"$state/scheduler.yaml"
}

api_ready() { kubectl get --raw /readyz; }
scheduler_ready() { curl -fsk "https://$api_address:10259/readyz"; }
controllers_ready() { kubectl get serviceaccount default -n default; }

start_api() {
  start_part etcd
  start_part apiserver
  await_part apiserver 90 api_ready || fail "no API server"
}

start_control_plane() {
  start_part controller-manager
  start_part scheduler
}
await_control_plane() {
  await_part scheduler 60 scheduler_ready || fail "no scheduler"
  await_part controller-manager 60 controllers_ready || fail "no controller manager"
}
