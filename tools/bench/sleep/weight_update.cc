#include "tools/bench/sleep/weight_update.h"

#include <errno.h>
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/monotonic.h"
#include "base/status_macros.h"
#include "proto/control.grpc.pb.h"
#include "proto/limits.h"

namespace somnus {
namespace {

constexpr int64_t kElementBytes = 2;

// Of zeros, under a name that other processes of this host can open.
class SharedZeros {
 public:
  static absl::StatusOr<std::unique_ptr<SharedZeros>> Create(int64_t bytes) {
    std::string name = absl::StrCat("/somnus_sleep_bench_", getpid());
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

int64_t BytesOf(const TensorInfo& tensor) {
  return std::accumulate(tensor.shape.begin(), tensor.shape.end(), kElementBytes, std::multiplies<>());
}

class Sender {
 public:
  using Stream = grpc::ClientWriter<v1::UpdateWeightsRequest>;

  // `shared`: where the tensors are; empty: the messages have them.
  Sender(Stream* stream, std::string shared) : stream_(stream), shared_(std::move(shared)) {}

  // False: the stream has ended.
  bool Begin() {
    v1::UpdateWeightsRequest request;
    request.mutable_begin();
    return stream_->Write(request);
  }
  bool Finish() {
    v1::UpdateWeightsRequest request;
    request.mutable_finish();
    return stream_->Write(request) && stream_->WritesDone();
  }

  bool Send(const TensorInfo& tensor) {
    const int64_t bytes = BytesOf(tensor);
    v1::UpdateWeightsRequest request;
    v1::WeightChunk* chunk = request.mutable_chunk();
    chunk->set_name(tensor.name);
    chunk->set_dtype(v1::WEIGHT_DTYPE_BFLOAT16);
    chunk->mutable_shape()->Assign(tensor.shape.begin(), tensor.shape.end());
    if (!shared_.empty()) {
      chunk->mutable_shared_memory()->set_name(shared_);
      chunk->mutable_shared_memory()->set_bytes(bytes);
      return stream_->Write(request);
    }
    for (int64_t sent = 0; sent < bytes;) {
      const int64_t part = std::min<int64_t>(bytes - sent, kMaxWeightChunkBytes);
      chunk->mutable_data()->assign(part, 0);
      if (!stream_->Write(request)) return false;
      sent += part;
      chunk->clear_name();
      chunk->clear_dtype();
      chunk->clear_shape();
    }
    return true;
  }

 private:
  Stream* const stream_;
  const std::string shared_;
};

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
  grpc::ClientContext context;
  v1::UpdateWeightsResponse response;
  const MonotonicTime begin = MonotonicNow();
  const std::unique_ptr<Sender::Stream> stream = stub->UpdateWeights(&context, &response);
  Sender sender(stream.get(), shared == nullptr ? "" : shared->name());
  bool open = sender.Begin();
  for (const TensorInfo* tensor : checkpoint.Tensors()) open = open && sender.Send(*tensor);
  if (open) sender.Finish();
  const grpc::Status status = stream->Finish();
  if (!status.ok()) return absl::UnavailableError(absl::StrCat("UpdateWeights: ", status.error_message()));
  measured.seconds = absl::ToDoubleSeconds(MonotonicNow() - begin);
  return measured;
}

}  // namespace somnus
