#pragma once
// WorkerService over gRPC: passes calls to the Worker and its results back, nothing else.
//
// Steps: the RPC's own thread reads them, the Worker's runner thread executes them, a third writes the
// replies, so that neither reading nor writing delays the device. At most kMaxQueuedSteps steps are between
// reading and writing. Borrows the Worker.

#include <grpcpp/impl/service_type.h>

#include <functional>
#include <memory>

namespace somnus {

class Worker;

// `on_shutdown` is called when the coordinator sends Shutdown, on an RPC thread; must not block.
std::unique_ptr<grpc::Service> MakeWorkerService(Worker* worker, std::function<void()> on_shutdown);

}  // namespace somnus
