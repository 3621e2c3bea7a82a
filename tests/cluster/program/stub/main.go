// A device plugin that answers every call at once. Compared with it, tests measure how much sharing delays the start of a pod.
//
//	stub RESOURCE DEVICES FOLDER    serves until it is killed; FOLDER is kubelet's device-plugins
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1beta1 "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

type plugin struct {
	v1beta1.UnimplementedDevicePluginServer
	devices int
}

func (plugin) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return &v1beta1.DevicePluginOptions{PreStartRequired: true}, nil
}

func (p plugin) ListAndWatch(_ *v1beta1.Empty, stream v1beta1.DevicePlugin_ListAndWatchServer) error {
	var list v1beta1.ListAndWatchResponse
	for n := range p.devices {
		list.Devices = append(list.Devices, &v1beta1.Device{ID: fmt.Sprintf("stub-%d", n), Health: v1beta1.Healthy})
	}
	if err := stream.Send(&list); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (plugin) Allocate(_ context.Context, request *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	var answer v1beta1.AllocateResponse
	for range request.ContainerRequests {
		answer.ContainerResponses = append(answer.ContainerResponses, &v1beta1.ContainerAllocateResponse{Envs: map[string]string{"STUB": "1"}})
	}
	return &answer, nil
}

func (plugin) PreStartContainer(context.Context, *v1beta1.PreStartContainerRequest) (*v1beta1.PreStartContainerResponse, error) {
	return &v1beta1.PreStartContainerResponse{}, nil
}

func main() {
	if len(os.Args) != 4 {
		log.Fatal("stub RESOURCE DEVICES FOLDER")
	}
	resource, folder := os.Args[1], os.Args[3]
	devices, err := strconv.Atoi(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	socket := filepath.Join(folder, "stub.sock")
	_ = os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	v1beta1.RegisterDevicePluginServer(server, plugin{devices: devices})
	go func() { log.Fatal(server.Serve(listener)) }()
	kubelet, err := grpc.NewClient("unix://"+filepath.Join(folder, "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	_, err = v1beta1.NewRegistrationClient(kubelet).Register(context.Background(), &v1beta1.RegisterRequest{
		Version: v1beta1.Version, Endpoint: "stub.sock", ResourceName: resource,
		Options: &v1beta1.DevicePluginOptions{PreStartRequired: true},
	})
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("%d devices of %s", devices, resource)
	select {}
}
