#pragma once
// Short names for the messages of the gateways' protocol. Internal to coordinator/grpc/gateway.

#include "proto/smg_common.pb.h"
#include "proto/vllm_engine.grpc.pb.h"

namespace somnus::gateway {

namespace wire = ::vllm::grpc::engine;
namespace common = ::smg::grpc::common;

}  // namespace somnus::gateway
