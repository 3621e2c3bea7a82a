# The programs of the cluster: built from the Go modules under program/, or unpacked from Debian packages. Nothing is installed.
# shellcheck shell=bash

# helm comes first, because the tests of the chart need nothing else.
modules=(helm kubernetes containerd stub)
debian=(runc containernetworking-plugins busybox-static)

# The linker flags that set the version which a module's programs print.
linked() {
  local version
  version=$(sed -n "s#^require $1 v##p" "$cluster_folder/program/$2/go.mod")
  case $2 in
    kubernetes*) printf '%s' "-X k8s.io/component-base/version.gitVersion=v$version -X k8s.io/component-base/version.gitMajor=${version%%.*} -X k8s.io/component-base/version.gitMinor=$(cut -d. -f2 <<<"$version")" ;;
    containerd) printf '%s' "-X github.com/containerd/containerd/v2/version.Version=$version" ;;
    # The Kubernetes that `helm template` assumes is that of its client library, as in helm's releases; otherwise it is 1.20.
    helm) printf '%s' "-X helm.sh/helm/v3/internal/version.version=v$version -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=$(sed -n 's#^\tk8s.io/client-go v0\.\([0-9]*\).*#\1#p' "$cluster_folder/program/helm/go.mod")" ;;
  esac
}
main_module() {
  case $1 in
    kubernetes*) printf k8s.io/kubernetes ;;
    containerd) printf github.com/containerd/containerd/v2 ;;
    helm) printf helm.sh/helm/v3 ;;
    stub) printf k8s.io/kubelet ;;
  esac
}

# The folder of a module's programs. Its name contains the hash of their sources, so that a change builds them again.
module_folder() { printf '%s/%s-%s' "$tools" "$1" "$(find "$cluster_folder/program/$1" -name 'go.*' -o -name '*.go' | LC_ALL=C sort | xargs cat | sha256sum | cut -c1-12)"; }

# need_go MODULE: finds or fetches a Go compiler that is new enough
need_go() {
  PATH=$PATH:/usr/local/go/bin
  command -v go >/dev/null || fail "go is missing: tests/run programs, or apt-get install golang-go"
  # Kubernetes needs Go 1.24 or later, and Debian 12 has 1.19. The newer Go comes as a Go module, as `go` itself would fetch it.
  local here least=1.24 wanted=1.24.4 module folder
  [ "$1" != kubernetes-1.37 ] || least=1.26 wanted=1.26.0
  here=$(GOTOOLCHAIN=local go env GOVERSION | sed 's/^go//')
  [ "$(printf '%s\n' "$least" "$here" | sort -V | head -1)" = "$least" ] && return 0
  module=golang.org/toolchain@v0.0.1-go$wanted.linux-$(go env GOARCH)
  say "fetching Go $wanted ($here is here)"
  (cd "$tools" && go mod download "$module") || fail "Go $wanted could not be fetched"
  folder=$(go env GOMODCACHE)/$module
  chmod -R u+w "$folder" && chmod +x "$folder"/bin/* "$folder"/pkg/tool/*/*
  export PATH=$folder/bin:$PATH GOROOT=$folder
}

# Builds a module's programs unless they exist.
build_module() {
  local name=$1 folder began=$SECONDS pid
  folder=$(module_folder "$name")
  [ -e "$folder/built" ] && return 0
  need_go "$name"
  say "building $name $(sed -n "s#^require $(main_module "$name") ##p" "$cluster_folder/program/$name/go.mod") into $folder (kubernetes takes 7 min from scratch on two cores, containerd and helm 1 to 2 min each)"
  rm -rf "$folder" && mkdir -p "$folder"
  # The checksum database does not have k8s.io/externaljwt; go.sum, which is committed, has its hash.
  (cd "$cluster_folder/program/$name" && CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS=-buildvcs=false GONOSUMDB=k8s.io/externaljwt \
    nice -n 10 go build -v -trimpath -ldflags "-s -w $(linked "$(main_module "$name")" "$name")" -o "$folder/" tool) >"$folder/log" 2>&1 8>&- 9>&- &
  pid=$!
  while sleep 1; kill -0 "$pid" 2>/dev/null; do
    [ $(((SECONDS - began) % 15)) -ne 0 ] || say "    $((SECONDS - began)) s, $(grep -vc '^go: ' "$folder/log") packages compiled, $(grep -c '^go: downloading' "$folder/log") modules fetched"
  done
  wait "$pid" || { tail -n 20 "$folder/log" >&2; fail "$name could not be built; all of it: $folder/log"; }
  # go names etcd's program after its folder, `server`.
  [ ! -e "$folder/server" ] || mv "$folder/server" "$folder/etcd"
  touch "$folder/built"
  say "    $name: $((SECONDS - began)) s"
}

# Unpacks Debian packages: debian_packages FOLDER PACKAGE...
unpack() {
  local folder=$1 work=$1.work
  shift
  [ -e "$folder/unpacked" ] && return 0
  say "unpacking Debian's $* into $folder"
  command -v apt-get >/dev/null || fail "there is no apt-get here, and $* come from Debian packages"
  rm -rf "$folder" "$work" && mkdir -p "$folder" "$work"
  chmod 0755 "$work"
  (cd "$work" && { apt-get download -q "$@" || { apt-get update -q && apt-get download -q "$@"; }; }) >"$work/log" 2>&1 || { tail "$work/log" >&2; fail "apt-get could not fetch $*"; }
  local package
  for package in "$work"/*.deb; do dpkg -x "$package" "$folder" || fail "$package could not be unpacked"; done
  rm -rf "$work"
  touch "$folder/unpacked"
}

release=$(. /etc/os-release 2>/dev/null && printf '%s' "${VERSION_CODENAME:-unknown}")
debian_folder() { printf '%s/%s' "$tools" "$release"; }

# Builds helm, and prints its path.
provide_helm() {
  local folder
  folder=$(module_folder helm)
  mkdir -p "$tools"
  if [ ! -e "$folder/built" ]; then
    exec 8>>"$tools/lock"
    flock 8
    build_module helm >&2
  fi
  say "$folder/helm"
}

# Builds everything that this version of Kubernetes needs. Sets $programs to the folders of the programs, for PATH.
programs=""
provide() {
  local module began=$SECONDS later=""
  [ "$1" = "$usual_kubernetes" ] || later=kubernetes-$1
  mkdir -p "$tools"
  # Two checkouts may build at the same time, so take a lock.
  exec 8>>"$tools/lock"
  flock -n 8 || { say "another build is running; waiting"; flock 8; }
  unpack "$(debian_folder)" "${debian[@]}"
  for module in "${modules[@]}" $later; do build_module "$module"; done
  build_images
  programs=$(module_folder containerd):$(module_folder kubernetes):$(module_folder helm):$(module_folder stub)
  # etcd comes from the default version.
  [ -z "$later" ] || programs=$(module_folder "$later"):$programs
  programs=$programs:$(debian_folder)/usr/sbin:$(debian_folder)/bin:$tools/image
  "$(debian_folder)/usr/sbin/runc" --version >/dev/null || fail "Debian's runc does not run here: apt-get install libseccomp2"
  exec 8>&-
  [ $((SECONDS - began)) -lt 2 ] || say "programs ready, $((SECONDS - began)) s"
}
