#pragma once
// WorkerService over gRPC: passes calls to the Worker and its results back. A lifecycle call that is sent
// again is not done again (OperationLog); ExecuteStreams serves the steps, and UpdateStreams the chunks of
// updates. Borrows the Worker.

#include <grpcpp/impl/service_type.h>

#include <functional>
#include <memory>

#include "worker/update_port.h"

namespace somnus {

class Worker;

// `on_shutdown` is called when the coordinator sends Shutdown, on an RPC thread; must not block. Without
// `open_port` a direct update finds no port here.
std::unique_ptr<grpc::Service> MakeWorkerService(Worker* worker, std::function<void()> on_shutdown,
                                                 OpenUpdatePort open_port = nullptr);

}  // namespace somnus
