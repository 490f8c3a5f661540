#pragma once
// PeerCollectives that move nothing, and record calls. The records outlive the object.

#include <cstring>
#include <memory>

#include "absl/synchronization/mutex.h"
#include "kernels/peer_collectives.h"

namespace somnus {

struct FakePeersNotes {
  absl::Mutex mu;
  absl::Status make_error, connect_error, probe_error;
  PeerLink link = PeerLink::kNvLink, group_link = PeerLink::kNvLink;
  bool probe_written = false;
  char device = 0;  // ranks with the same value share a device; 0: each has a separate device
  absl::Status status;
  int reduces = 0, gathers = 0, norms = 0;
  bool fuses = true;
  bool connected = false, stopped = false, gone = false;
  bool gone_while_connected = false;
};

class FakePeers : public PeerCollectives {
 public:
  FakePeers(const PeerOptions& options, std::shared_ptr<FakePeersNotes> notes)
      : options_(options), notes_(std::move(notes)) {}
  ~FakePeers() override {
    absl::MutexLock lock(&notes_->mu);
    notes_->gone_while_connected = notes_->connected;
    notes_->gone = true;
  }

  static absl::StatusOr<std::unique_ptr<PeerCollectives>> Make(const PeerOptions& options,
                                                               const std::shared_ptr<FakePeersNotes>& notes) {
    if (!notes->make_error.ok()) return notes->make_error;
    return std::make_unique<FakePeers>(options, notes);
  }

  PeerHandle handle() const override {
    PeerHandle handle;
    handle.address = 100 + options_.rank;
    handle.device_uuid[0] = notes_->device != 0 ? notes_->device : static_cast<char>(64 + options_.rank);
    return handle;
  }
  absl::Status Connect(absl::Span<const PeerHandle> handles) override {
    absl::MutexLock lock(&notes_->mu);
    if (static_cast<int>(handles.size()) != options_.world_size) return absl::InternalError("handles");
    for (int r = 0; r < options_.world_size; ++r) {
      if (handles[r].address != 100u + r) return absl::InternalError("handles are not in rank order");
    }
    notes_->connected = notes_->connect_error.ok();
    return notes_->connect_error;
  }
  absl::Status WriteProbe() override {
    absl::MutexLock lock(&notes_->mu);
    notes_->probe_written = true;
    return absl::OkStatus();
  }
  absl::Status CheckProbe() override {
    absl::MutexLock lock(&notes_->mu);
    return notes_->probe_written ? notes_->probe_error : absl::InternalError("no probe was written");
  }
  PeerLink link() const override { return notes_->link; }
  void SetGroupLink(PeerLink link) override {
    absl::MutexLock lock(&notes_->mu);
    notes_->group_link = link;
  }
  void Disconnect() override {
    absl::MutexLock lock(&notes_->mu);
    notes_->connected = false;
  }
  void AllReduceSum(void*, int64_t, DataType) override {
    absl::MutexLock lock(&notes_->mu);
    ++notes_->reduces;
  }
  void AllGather(const void*, int64_t, void*) override {
    absl::MutexLock lock(&notes_->mu);
    ++notes_->gathers;
  }
  bool AllReduceAddRmsNorm(const TensorView&, const TensorView&, const float*, double,
                           const TensorView&) override {
    absl::MutexLock lock(&notes_->mu);
    notes_->norms += notes_->fuses;
    return notes_->fuses;
  }
  void Stop() override {
    absl::MutexLock lock(&notes_->mu);
    notes_->stopped = true;
  }
  absl::Status status() const override {
    absl::MutexLock lock(&notes_->mu);
    return notes_->status;
  }

 private:
  const PeerOptions options_;
  const std::shared_ptr<FakePeersNotes> notes_;
};

}  // namespace somnus
