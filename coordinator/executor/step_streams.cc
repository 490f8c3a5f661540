#include "coordinator/executor/step_streams.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/limits.h"
#include "proto/status.h"

namespace somnus {
namespace {

absl::StatusOr<grpc::ByteBuffer> Encode(const v1::StepRequest& step) {
  grpc::ByteBuffer bytes;
  bool owns_bytes = false;
  const grpc::Status status =
      grpc::SerializationTraits<v1::StepRequest>::Serialize(step, &bytes, &owns_bytes);
  if (!status.ok()) return absl::InternalError(absl::StrCat("step ", step.step_id(), " cannot be encoded"));
  if (bytes.Length() > static_cast<size_t>(kMaxWorkerMessageBytes)) {
    return absl::InvalidArgumentError(absl::StrCat("step ", step.step_id(), " takes ", bytes.Length(),
                                                   " bytes, more than ", kMaxWorkerMessageBytes));
  }
  return bytes;
}

}  // namespace

StepStreams::StepStreams(const std::vector<WorkerLink>* workers, FailureLatch* latch,
                         absl::Duration blame_grace, size_t sampling_rank)
    : workers_(*workers), latch_(*latch), blame_grace_(blame_grace), sampling_rank_(sampling_rank) {
  for (size_t rank = 0; rank < workers_.size(); ++rank) {
    streams_.push_back(std::make_unique<RankStream>());
    streams_.back()->rank = rank;
    for (size_t i = 0; i < kNumOperations; ++i) {
      streams_.back()->tags[i] = {streams_.back().get(), static_cast<Operation>(i)};
    }
  }
}

StepStreams::~StepStreams() {
  for (auto& rank : streams_) {
    if (rank->stream == nullptr) continue;
    rank->stream->Finish(&rank->final_status, Begin(rank.get(), Operation::kFinish));
  }
  queue_.Shutdown();
  while (Next()) {
  }
  for (auto& rank : streams_) {
    if (rank->stream != nullptr) latch_.Unregister(rank->context.get());
  }
}

absl::Status StepStreams::Send(const v1::StepRequest& step) {
  ASSIGN_OR_RETURN(const grpc::ByteBuffer bytes, Encode(step));
  if (!open_ && !Open()) return latch_.status();
  RETURN_IF_ERROR(Await([&] {
    return std::all_of(streams_.begin(), streams_.end(), [](const auto& rank) { return rank->writable(); });
  }));
  for (auto& rank : streams_) rank->stream->Write(bytes, Begin(rank.get(), Operation::kWrite));
  return absl::OkStatus();
}

absl::Status StepStreams::SendMasks(int64_t group_epoch, v1::StepMasks masks) {
  RankStream* const sampling = streams_[sampling_rank_].get();
  int next = 0;
  do {
    v1::StepRequest message;
    message.set_group_epoch(group_epoch);
    message.mutable_masks()->set_step_id(masks.step_id());
    int64_t bytes = 0;
    for (; next < masks.masks_size() && bytes < kStepBytes; ++next) {
      bytes += static_cast<int64_t>(masks.masks(next).allowed().size());
      message.mutable_masks()->add_masks()->Swap(masks.mutable_masks(next));
    }
    message.mutable_masks()->set_has_more(next < masks.masks_size());
    ASSIGN_OR_RETURN(const grpc::ByteBuffer encoded, Encode(message));
    RETURN_IF_ERROR(Await([&] { return sampling->writable(); }));
    sampling->stream->Write(encoded, Begin(sampling, Operation::kWrite));
  } while (next < masks.masks_size());
  return absl::OkStatus();
}

absl::StatusOr<v1::StepReply> StepStreams::Receive(int64_t step_id) {
  RETURN_IF_ERROR(Await([&] {
    return std::all_of(streams_.begin(), streams_.end(),
                       [](const auto& rank) { return !rank->replies.empty(); });
  }));
  v1::StepReply sampled;
  RETURN_IF_ERROR(TakeReplies(step_id, &sampled));
  return sampled;
}

absl::Status StepStreams::TakeReplies(int64_t step_id, v1::StepReply* sampled) {
  for (const auto& rank : streams_) {
    if (rank->replies.front().error_code() != 0) return CheckReplies();
  }
  *sampled = std::move(streams_[sampling_rank_]->replies.front());
  for (auto& rank : streams_) {
    v1::StepReply moved = std::move(rank->replies.front());
    rank->replies.pop_front();
    const v1::StepReply& reply = rank->rank == sampling_rank_ ? *sampled : moved;
    if (reply.step_id() != step_id) {
      return latch_.Blame(absl::InternalError(absl::StrCat(workers_[rank->rank].name, " replied to step ",
                                                           reply.step_id(), " where ", step_id, " was due")),
                          blame_grace_);
    }
    if (reply.weights_version() != sampled->weights_version()) {
      return latch_.Blame(absl::InternalError(absl::StrCat(workers_[rank->rank].name, " computed step ",
                                                           step_id, " with version ", reply.weights_version(),
                                                           " of the weights, rank ", sampling_rank_, " with ",
                                                           sampled->weights_version())),
                          blame_grace_);
    }
    if (rank->rank == sampling_rank_) continue;
    // A swap that any rank refused counts as refused by all ranks.
    for (const v1::SlotError& error : reply.slot_errors()) {
      if (error.slot() == kSwapsSlot) *sampled->add_slot_errors() = error;
    }
    sampled->set_kv_host_bytes(sampled->kv_host_bytes() + reply.kv_host_bytes());
    for (v1::ExpertLoad& load : *moved.mutable_expert_loads()) sampled->add_expert_loads()->Swap(&load);
  }
  return absl::OkStatus();
}

void StepStreams::Close() {
  if (!open_) return;
  for (auto& rank : streams_) {
    // A stream whose last write may still be under way is cancelled instead.
    if (rank->broken || !rank->writable()) continue;
    rank->stream->WritesDone(Begin(rank.get(), Operation::kWritesDone));
  }
}

std::vector<size_t> StepStreams::MissingRanks() const {
  int64_t least = INT64_MAX;
  for (const auto& rank : streams_) least = std::min(least, rank->num_replies.load());
  std::vector<size_t> missing;
  for (const auto& rank : streams_) {
    if (rank->num_replies.load() == least) missing.push_back(rank->rank);
  }
  return missing;
}

// False when the latch has failed.
bool StepStreams::Open() {
  const std::string method = absl::StrCat("/", v1::WorkerService::service_full_name(), "/Execute");
  for (auto& rank : streams_) {
    rank->context = std::make_unique<grpc::ClientContext>();
    if (!latch_.Register(rank->context.get())) return false;
    rank->stream = StepStub(workers_[rank->rank].channel).PrepareCall(rank->context.get(), method, &queue_);
    rank->stream->StartCall(Begin(rank.get(), Operation::kStart));
  }
  open_ = true;
  return true;
}

void* StepStreams::Begin(RankStream* rank, Operation operation) {
  rank->pending[static_cast<size_t>(operation)] = true;
  return &rank->tags[static_cast<size_t>(operation)];
}

void StepStreams::Read(RankStream* rank) {
  rank->incoming.Clear();
  rank->stream->Read(&rank->incoming, Begin(rank, Operation::kRead));
}

bool StepStreams::Next() {
  void* got = nullptr;
  bool ok = false;
  if (!queue_.Next(&got, &ok)) return false;
  const Tag& tag = *static_cast<const Tag*>(got);
  RankStream* rank = tag.stream;
  rank->pending[static_cast<size_t>(tag.operation)] = false;
  if (!ok) {
    rank->broken = true;
    return true;
  }
  if (tag.operation == Operation::kRead) {
    rank->replies.push_back(std::move(rank->incoming));
    rank->num_replies.fetch_add(1);
  }
  // A read is always under way, so that a reply is taken on arrival.
  const bool reads = tag.operation == Operation::kRead || tag.operation == Operation::kStart;
  if (reads && !rank->pending[static_cast<size_t>(Operation::kFinish)]) Read(rank);
  return true;
}

template <typename Done>
absl::Status StepStreams::Await(const Done& done) {
  while (!done()) {
    RETURN_IF_ERROR(CheckReplies());
    Next();
  }
  return absl::OkStatus();
}

// An error reply says more than a stream that broke, so all ranks are searched for an error reply first. The
// reply may still be on its way when a write has failed.
absl::Status StepStreams::CheckReplies() const {
  for (const auto& rank : streams_) {
    for (const v1::StepReply& reply : rank->replies) {
      if (reply.error_code() == 0) continue;
      const absl::Status error(static_cast<absl::StatusCode>(reply.error_code()), reply.error_message());
      return latch_.Blame(
          Annotate(error, absl::StrCat(workers_[rank->rank].name, " failed step ", reply.step_id())),
          blame_grace_);
    }
  }
  for (const auto& rank : streams_) {
    if (!rank->broken || rank->pending[static_cast<size_t>(Operation::kRead)]) continue;
    return latch_.Blame(
        absl::UnavailableError(absl::StrCat(workers_[rank->rank].name, " closed its step stream")),
        blame_grace_);
  }
  return absl::OkStatus();
}

}  // namespace somnus
