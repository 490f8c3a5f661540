#include "tools/bench/sleep/weight_update.h"

#include <errno.h>
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/monotonic.h"
#include "base/random_hex.h"
#include "base/status_macros.h"
#include "proto/cluster_trust.h"
#include "proto/control.grpc.pb.h"
#include "proto/status.h"
#include "proto/weights.grpc.pb.h"

namespace somnus {
namespace {

constexpr int64_t kElementBytes = 2;
constexpr int64_t kChunkBytes = 512 << 10;  // as the Python client

// Shared memory of zeros, under a name that other processes of this host can open.
class SharedZeros {
 public:
  static absl::StatusOr<std::unique_ptr<SharedZeros>> Create(int64_t bytes) {
    std::string name = absl::StrCat("/somnus_sleep_bench_", RandomHex(8));
    const int fd = shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0) return absl::ErrnoToStatus(errno, "shm_open");
    std::unique_ptr<SharedZeros> zeros(new SharedZeros(std::move(name)));
    const int error = posix_fallocate(fd, 0, bytes);  // resident, as a trainer's tensors are
    close(fd);
    if (error != 0) return absl::ErrnoToStatus(error, "shared memory");
    return zeros;
  }
  ~SharedZeros() { shm_unlink(name_.c_str()); }
  SharedZeros(const SharedZeros&) = delete;
  const std::string& name() const { return name_; }

 private:
  explicit SharedZeros(std::string name) : name_(std::move(name)) {}
  const std::string name_;
};

// Splits the time since construction.
class Laps {
 public:
  // Seconds since the last call.
  double Next() {
    const MonotonicTime now = MonotonicNow();
    return absl::ToDoubleSeconds(now - std::exchange(last_, now));
  }
  // Until the last call.
  double Total() const { return absl::ToDoubleSeconds(last_ - begin_); }

 private:
  const MonotonicTime begin_ = MonotonicNow();
  MonotonicTime last_ = begin_;
};

int64_t BytesOf(const TensorInfo& tensor) {
  return std::accumulate(tensor.shape.begin(), tensor.shape.end(), kElementBytes, std::multiplies<>());
}

// False: the stream has ended.
using WriteChunk = std::function<bool(const v1::WeightChunk& chunk)>;

// `shared`: the tensor's shared memory; empty: the messages have the tensor.
bool Send(const TensorInfo& tensor, const std::string& shared, const WriteChunk& write) {
  const int64_t bytes = BytesOf(tensor);
  v1::WeightChunk chunk;
  chunk.set_name(tensor.name);
  chunk.set_dtype(v1::WEIGHT_DTYPE_BFLOAT16);
  chunk.mutable_shape()->Assign(tensor.shape.begin(), tensor.shape.end());
  if (!shared.empty()) {
    chunk.mutable_shared_memory()->set_name(shared);
    chunk.mutable_shared_memory()->set_bytes(bytes);
    return write(chunk);
  }
  for (int64_t sent = 0; sent < bytes;) {
    const int64_t part = std::min<int64_t>(bytes - sent, kChunkBytes);
    chunk.mutable_data()->assign(part, 0);
    if (!write(chunk)) return false;
    sent += part;
    chunk.clear_name();
    chunk.clear_dtype();
    chunk.clear_shape();
  }
  return true;
}

// The streams to the ports of workers on this host.
class PortStreams {
 public:
  explicit PortStreams(const v1::DirectUpdateWeightsResponse::Ports& ports) : streams_(ports.ports_size()) {
    for (int i = 0; i < ports.ports_size(); ++i) {
      Stream& stream = streams_[i];
      stream.stub = v1::UpdatePortService::NewStub(
          grpc::CreateChannel(ports.ports(i).address(), grpc::experimental::LocalCredentials(UDS)));
      stream.context.AddMetadata(kUpdateTokenKey, ports.token());
      stream.writer = stream.stub->UpdateWeights(&stream.context, &stream.response);
      v1::WorkerUpdateWeightsRequest first;
      first.set_group_epoch(ports.ports(i).group_epoch());
      first.set_update_id(ports.ports(i).update_id());
      stream.writer->Write(first);
    }
  }
  bool Write(const v1::WeightChunk& chunk) {
    *request_.mutable_chunk() = chunk;
    return std::all_of(streams_.begin(), streams_.end(),
                       [&](Stream& stream) { return stream.writer->Write(request_); });
  }
  // The reply of the first worker; the server compares it with the replies of the rest.
  grpc::Status Finish(v1::WorkerUpdateWeightsResponse* response) {
    for (Stream& stream : streams_) stream.writer->WritesDone();
    grpc::Status status;
    for (Stream& stream : streams_) {
      grpc::Status own = stream.writer->Finish();
      if (status.ok()) status = std::move(own);
    }
    if (!streams_.empty()) *response = streams_[0].response;
    return status;
  }

 private:
  struct Stream {
    std::unique_ptr<v1::UpdatePortService::Stub> stub;
    grpc::ClientContext context;
    v1::WorkerUpdateWeightsResponse response;
    std::unique_ptr<grpc::ClientWriter<v1::WorkerUpdateWeightsRequest>> writer;
  };
  std::vector<Stream> streams_;
  v1::WorkerUpdateWeightsRequest request_;
};

// Through the server. `shared` as in Send.
grpc::Status Update(v1::ControlService::Stub* stub, const Checkpoint& checkpoint, const std::string& shared,
                    MeasuredUpdate* measured) {
  Laps laps;
  grpc::ClientContext context;
  v1::UpdateWeightsResponse response;
  const auto stream = stub->UpdateWeights(&context, &response);
  v1::UpdateWeightsRequest request;
  request.mutable_begin();
  bool open = stream->Write(request);
  measured->begin = laps.Next();
  const WriteChunk write = [&](const v1::WeightChunk& chunk) {
    *request.mutable_chunk() = chunk;
    return stream->Write(request);
  };
  for (const TensorInfo* tensor : checkpoint.Tensors()) open = open && Send(*tensor, shared, write);
  measured->tensors = laps.Next();
  request.mutable_finish();
  if (open && stream->Write(request)) stream->WritesDone();
  grpc::Status status = stream->Finish();
  measured->finish = laps.Next();
  measured->seconds = laps.Total();
  return status;
}

grpc::Status UpdateDirectly(v1::ControlService::Stub* stub, const Checkpoint& checkpoint,
                            MeasuredUpdate* measured) {
  Laps laps;
  grpc::ClientContext context;
  const auto stream = stub->DirectUpdateWeights(&context);
  v1::UpdateWeightsRequest request;
  request.mutable_begin();
  stream->Write(request);
  v1::DirectUpdateWeightsResponse response;
  if (!stream->Read(&response)) return stream->Finish();
  if (response.ports().ports().empty())
    return {grpc::StatusCode::UNAVAILABLE, "the workers have no ports for it"};
  PortStreams ports(response.ports());
  measured->begin = laps.Next();
  bool open = true;
  for (const TensorInfo* tensor : checkpoint.Tensors()) {
    open = open && Send(*tensor, "", [&](const v1::WeightChunk& chunk) { return ports.Write(chunk); });
  }
  if (grpc::Status status = ports.Finish(request.mutable_finish()->mutable_received()); !status.ok())
    return status;
  measured->tensors = laps.Next();
  stream->Write(request);
  stream->Read(&response);
  grpc::Status status = stream->Finish();
  measured->finish = laps.Next();
  measured->seconds = laps.Total();
  return status;
}

}  // namespace

absl::StatusOr<MeasuredUpdate> SendWeights(int port, const Checkpoint& checkpoint,
                                           WeightTransport transport) {
  MeasuredUpdate measured;
  int64_t biggest = 0;
  for (const TensorInfo* tensor : checkpoint.Tensors()) {
    measured.bytes += BytesOf(*tensor);
    biggest = std::max(biggest, BytesOf(*tensor));
  }
  std::unique_ptr<SharedZeros> shared;
  if (transport == WeightTransport::kSharedMemory) {
    ASSIGN_OR_RETURN(shared, SharedZeros::Create(biggest));
  }
  const auto stub = v1::ControlService::NewStub(
      grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials()));
  const grpc::Status status =
      transport == WeightTransport::kDirect
          ? UpdateDirectly(stub.get(), checkpoint, &measured)
          : Update(stub.get(), checkpoint, shared == nullptr ? "" : shared->name(), &measured);
  if (!status.ok()) {
    const absl::Status failure = FromGrpcStatus(status);
    return absl::Status(failure.code(), absl::StrCat("weight update: ", failure.message()));
  }
  return measured;
}

}  // namespace somnus
