#pragma once
// The weights of a rank of which only the version and the source matter. Not thread safe.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "proto/worker.pb.h"

namespace somnus {

class FakeWeights {
 public:
  // The version in replies.
  int64_t version() const { return stale_ ? 0 : version_; }
  bool stale() const { return stale_; }
  const std::string& fingerprint() const { return fingerprint_; }
  // Chunks of the last update, by the tensors' names.
  const std::vector<std::string>& chunks() const { return chunks_; }

  void SetVersion(int64_t version) { version_ = version; }  // that replies carry from now on
  // Sets the fingerprint of the first checkpoint's files.
  void SetFingerprint(const std::string& fingerprint) { fingerprint_ = files_ = fingerprint; }

  void Load(const v1::LoadModelRequest& request) {
    if (request.weights_version() > 0) version_ = request.weights_version();
    stale_ = request.load_format() == v1::LOAD_FORMAT_NONE;
    fingerprint_ = FilesOf(request.model_path());
  }
  void Reload(const v1::WorkerReloadWeightsRequest& request, v1::WorkerReloadWeightsResponse* response) {
    version_ = request.weights_version();
    stale_ = false;
    fingerprint_ = FilesOf(request.model_path());
    response->set_weights_version(version_);
    response->set_checkpoint_fingerprint(fingerprint_);
  }
  void BeginUpdate(const v1::BeginWeightUpdateRequest& request, v1::BeginWeightUpdateResponse* response) {
    update_id_ = request.update_id();
    stale_ = true;
    chunks_.clear();
    if (const std::string& token = request.update_port_token(); !token.empty() && has_ports_)
      response->mutable_update_port()->set_address("port for " + token);
  }
  // An update finds no port here.
  void TakePorts() { has_ports_ = false; }
  // The last stream has begun without a chunk: a worker with a port closes the port when that stream ends.
  bool port_is_held() const { return port_is_held_; }
  // The number of received tensors, each chunk a tensor, including tensors that came to a port.
  int64_t num_received() const { return static_cast<int64_t>(chunks_.size()) + num_at_port_; }
  void ReceiveAtPort() { ++num_at_port_; }
  // A chunk of the tensor "unknown" is refused.
  absl::Status Add(const v1::WorkerUpdateWeightsRequest& request, bool is_first) {
    if (is_first) port_is_held_ = !request.has_chunk();
    if (is_first && request.update_id() != update_id_)
      return absl::FailedPreconditionError(absl::StrCat("there is no update ", request.update_id()));
    if (request.chunk().name() == "unknown")
      return absl::InvalidArgumentError("there is no tensor 'unknown'");
    if (request.has_chunk()) chunks_.push_back(request.chunk().name());
    return absl::OkStatus();
  }
  absl::Status FinishUpdate(const v1::FinishWeightUpdateRequest& request) {
    if (request.update_id() != update_id_)
      return absl::FailedPreconditionError(absl::StrCat("there is no update ", request.update_id()));
    version_ = request.weights_version();
    fingerprint_ = "update " + update_id_;
    stale_ = false;
    return absl::OkStatus();
  }

 private:
  std::string FilesOf(const std::string& path) const {
    return path.empty() || path == "model" ? files_ : "of " + path;
  }

  int64_t version_ = 1;
  bool stale_ = false;
  bool has_ports_ = true;
  bool port_is_held_ = false;
  int64_t num_at_port_ = 0;
  std::string fingerprint_ = "f00d", files_ = "f00d";
  std::string update_id_;
  std::vector<std::string> chunks_;
};

}  // namespace somnus
