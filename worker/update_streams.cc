#include "worker/update_streams.h"

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/status.h"
#include "proto/worker.grpc.pb.h"
#include "worker/worker.h"

namespace somnus {
namespace {

// One stream is in use, or two of a direct update; the other streams belong to lost coordinators, and are
// ending.
constexpr size_t kMaxUpdateStreams = 8;

// The first message with a chunk makes it a stream of chunks, which ends any other one.
absl::Status Add(Worker& worker, int64_t epoch, const v1::WorkerUpdateWeightsRequest& request,
                 const std::string& update_id, uint64_t* stream) {
  if (!request.has_chunk()) return absl::OkStatus();
  if (*stream == 0) {
    ASSIGN_OR_RETURN(*stream, worker.OpenWeightStream(epoch, update_id));
  }
  return worker.AddWeights(epoch, *stream, request.chunk());
}

}  // namespace

// Keeps a stream in the list while it is served.
class UpdateStreams::Registration {
 public:
  Registration(UpdateStreams* streams, grpc::ServerContext* context) : streams_(streams) {
    absl::MutexLock lock(&streams_->mu_);
    admitted_ = streams_->open_.size() < kMaxUpdateStreams;
    self_ = streams_->open_.insert(streams_->open_.end(), context);
  }
  ~Registration() {
    absl::MutexLock lock(&streams_->mu_);
    streams_->open_.erase(self_);
  }
  bool admitted() const { return admitted_; }

 private:
  UpdateStreams* const streams_;
  std::list<grpc::ServerContext*>::iterator self_;
  bool admitted_ = false;
};

grpc::Status UpdateStreams::Serve(grpc::ServerContext* context, Reader* reader,
                                  v1::WorkerUpdateWeightsResponse* response) {
  return Admit(context, reader, response, /*may_hold_port=*/true);
}

grpc::Status UpdateStreams::Admit(grpc::ServerContext* context, Reader* reader,
                                  v1::WorkerUpdateWeightsResponse* response, bool may_hold_port) {
  const Registration registration(this, context);
  if (!registration.admitted()) {
    return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                        absl::StrCat("UpdateWeights: ", kMaxUpdateStreams, " streams are open"));
  }
  return ToGrpcStatus(ServeChunks(reader, response, may_hold_port));
}

absl::Status UpdateStreams::ServeChunks(Reader* reader, v1::WorkerUpdateWeightsResponse* response,
                                        bool may_hold_port) {
  v1::WorkerUpdateWeightsRequest request;
  if (!reader->Read(&request))
    return absl::InvalidArgumentError("UpdateWeights: a stream begins with its epoch and update");
  const int64_t epoch = request.group_epoch();
  const std::string update_id = request.update_id();
  const bool holds_port = may_hold_port && !request.has_chunk();
  uint64_t stream = 0;  // 0: there was no chunk
  absl::Status status;
  do {
    const bool same = (request.group_epoch() == 0 || request.group_epoch() == epoch) &&
                      (request.update_id().empty() || request.update_id() == update_id);
    status = same ? Add(*worker_, epoch, request, update_id, &stream)
                  : absl::InvalidArgumentError("UpdateWeights: a stream has one epoch and one update");
  } while (status.ok() && reader->Read(&request));
  if (holds_port) ClosePort(update_id);
  // Also when the sender is gone: memory that was taken for a part of a tensor is given back.
  absl::StatusOr<v1::WorkerUpdateWeightsResponse> closed =
      stream == 0 ? worker_->ReceivedWeights(epoch, update_id) : worker_->CloseWeightStream(epoch, stream);
  RETURN_IF_ERROR(status);
  RETURN_IF_ERROR(closed.status());
  *response = *std::move(closed);
  return absl::OkStatus();
}

absl::StatusOr<v1::UpdatePort> UpdateStreams::OpenPort(const std::string& update_id,
                                                       const std::string& token) {
  if (open_port_ == nullptr) return absl::UnimplementedError("this worker has no update ports");
  absl::MutexLock lock(&port_mu_);
  port_ = nullptr;
  ASSIGN_OR_RETURN(port_, open_port_(token, [this](grpc::ServerContext* context, Reader* reader,
                                                   v1::WorkerUpdateWeightsResponse* response) {
                     return Admit(context, reader, response, /*may_hold_port=*/false);
                   }));
  port_update_ = update_id;
  return port_->place();
}

void UpdateStreams::ClosePort(const std::string& update_id) {
  absl::MutexLock lock(&port_mu_);
  if (update_id.empty() || update_id == port_update_) port_ = nullptr;
}

void UpdateStreams::CancelAll() {
  absl::MutexLock lock(&mu_);
  for (grpc::ServerContext* context : open_) context->TryCancel();
}

}  // namespace somnus
