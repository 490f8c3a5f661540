#pragma once
// Comes first in every file of the simulation (by -include), also in files of the product that are compiled
// once more for the simulation: gRPC's own headers, and generated headers, count as included already, and the
// simulation's classes stand in their place. The simulation's classes are in a namespace of another name,
// since a linked library may bring the real classes.

#define grpc simulated_grpc

#define GRPCPP_GRPCPP_H
#define GRPCPP_GENERIC_GENERIC_STUB_H
#define GRPCPP_CLIENT_CONTEXT_H
#define GRPCPP_SERVER_CONTEXT_H
#define GRPCPP_SECURITY_CREDENTIALS_H
#define GRPCPP_SECURITY_SERVER_CREDENTIALS_H
#define GRPCPP_SECURITY_TLS_CERTIFICATE_PROVIDER_H
#define GRPCPP_SUPPORT_STATUS_H
#define GRPCPP_SUPPORT_SYNC_STREAM_H
#define GRPCPP_IMPL_SERVICE_TYPE_H
#define GRPC_proto_2fcluster_2eproto__INCLUDED
#define GRPC_proto_2fworker_2eproto__INCLUDED

#include "tests/simulation/grpc.h"
#include "tests/simulation/services.h"
