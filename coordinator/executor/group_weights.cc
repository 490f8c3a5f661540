#include "coordinator/executor/group_weights.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random_hex.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

constexpr int kUpdateIdBytes = 8;

}  // namespace

WeightsOutcome GroupWeights::Reload(const std::string& path, int64_t version) {
  v1::WorkerReloadWeightsRequest request;
  request.set_model_path(path);
  request.set_weights_version(version);
  calls_.Stamp(&request);
  std::vector<v1::WorkerReloadWeightsResponse> responses(workers_.size());
  reads_weights_ = true;
  const std::vector<absl::Status> statuses =
      calls_.RunOperation("ReloadWeights", options_.load_timeout,
                          [&](const WorkerLink& worker, size_t rank, grpc::ClientContext* context) {
                            return worker.stub->ReloadWeights(context, request, &responses[rank]);
                          });
  WeightsOutcome outcome;
  outcome.status = calls_.FirstError(statuses);
  outcome.untouched = std::all_of(statuses.begin(), statuses.end(), IsRefusal);
  // A rank whose call was cut short may read on.
  reads_weights_ = std::any_of(statuses.begin(), statuses.end(), [](const absl::Status& status) {
    return absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status) || absl::IsCancelled(status);
  });
  if (!outcome.status.ok()) return outcome;
  outcome.status = CheckFingerprints(responses);
  outcome.fingerprint = responses[0].checkpoint_fingerprint();
  return outcome;
}

absl::Status GroupWeights::CheckFingerprints(
    const std::vector<v1::WorkerReloadWeightsResponse>& responses) const {
  const std::string& first = responses[0].checkpoint_fingerprint();
  for (size_t rank = 1; rank < responses.size(); ++rank) {
    const std::string& own = responses[rank].checkpoint_fingerprint();
    if (own == first) continue;
    return absl::DataLossError(absl::StrCat(workers_[rank].name, " on ", workers_[rank].endpoint.host,
                                            " has read other files than rank 0 (fingerprints ",
                                            own.substr(0, 12), " and ", first.substr(0, 12), ")"));
  }
  return absl::OkStatus();
}

std::vector<absl::Status> GroupWeights::Begin(const std::string& update_id, const std::vector<bool>& ranks,
                                              const std::string& port_token,
                                              const std::vector<v1::WeightChunk>& tensors,
                                              std::vector<v1::UpdatePort>* ports) const {
  v1::BeginWeightUpdateRequest request;
  request.set_update_id(update_id);
  request.set_update_port_token(port_token);
  request.mutable_tensors()->Add(tensors.begin(), tensors.end());
  calls_.Stamp(&request);
  std::vector<v1::BeginWeightUpdateResponse> responses(workers_.size());
  std::vector<absl::Status> statuses =
      calls_.RunOperation("BeginWeightUpdate", options_.lifecycle_timeout,
                          [&](const WorkerLink& worker, size_t rank, grpc::ClientContext* context) {
                            if (!ranks[rank]) return grpc::Status::OK;
                            return worker.stub->BeginWeightUpdate(context, request, &responses[rank]);
                          });
  for (size_t rank = 0; rank < responses.size() && !port_token.empty(); ++rank) {
    if (!responses[rank].has_update_port()) {
      ports->clear();
      break;
    }
    v1::UpdatePort& port = ports->emplace_back(std::move(*responses[rank].mutable_update_port()));
    port.set_group_epoch(request.group_epoch());
    port.set_update_id(update_id);
    port.set_rank(static_cast<int32_t>(rank));
  }
  return statuses;
}

WeightsOutcome GroupWeights::BeginUpdate(const std::string& update_id, const std::string& port_token,
                                         const std::vector<v1::WeightChunk>& tensors) {
  WeightsOutcome outcome;
  const std::vector<absl::Status> statuses =
      Begin(update_id, std::vector<bool>(workers_.size(), true), port_token, tensors, &outcome.ports);
  outcome.status = calls_.FirstError(statuses);
  outcome.untouched = std::all_of(statuses.begin(), statuses.end(), IsRefusal);
  if (!outcome.status.ok()) {
    outcome.ports.clear();
    if (!port_token.empty() && !outcome.untouched) streams_.ClosePorts(update_id);
    return outcome;
  }
  update_id_ = update_id;
  // Also where not all ranks have a port: ranks with a port close it at the update's end.
  streams_.Open(update_id, /*hold_ports=*/!port_token.empty());
  return outcome;
}

WeightsOutcome GroupWeights::FinishUpdate(int64_t version, const std::optional<ReceivedWeights>& expected) {
  WeightsOutcome outcome;
  const absl::StatusOr<ReceivedWeights> received = streams_.Close();
  outcome.status = received.status();
  if (!received.ok()) return outcome;
  outcome.received = *received;
  if (expected.has_value() && *expected != *received) {
    outcome.status = absl::DataLossError(absl::StrCat(
        "received: the workers have got ", received->num_tensors, " tensors of ", received->num_bytes,
        " bytes, and not those ", expected->num_tensors, " tensors of ", expected->num_bytes, " bytes"));
    return outcome;
  }
  v1::FinishWeightUpdateRequest request;
  request.set_update_id(update_id_);
  request.set_weights_version(version);
  outcome.status = calls_
                       .CollectOperation(calls_.all(), options_.lifecycle_timeout,
                                         &CollectiveCalls::Stub::FinishWeightUpdate, request)
                       .status();
  return outcome;
}

absl::StatusOr<bool> GroupWeights::MakeStale(const std::vector<v1::WorkerSnapshot>& snapshots) {
  std::vector<bool> fresh;
  for (const v1::WorkerSnapshot& snapshot : snapshots) fresh.push_back(!snapshot.weights_stale());
  if (std::find(fresh.begin(), fresh.end(), true) == fresh.end()) return false;
  RETURN_IF_ERROR(calls_.FirstError(Begin(RandomHex(kUpdateIdBytes), fresh, "", {}, nullptr)));
  return true;
}

}  // namespace somnus
