#pragma once
// The memory of a rank, with tags alone, and the rank's transitions. Not thread safe.

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/worker.pb.h"

namespace somnus {

class FakeMemory {
 public:
  static constexpr int64_t kTagBytes = 7;
  static constexpr double kReleaseSeconds = 0.02;  // that Commit says a sleep has taken

  // Plan's answer about the memory that a wake-up would take.
  void SetAvailableBytes(int64_t bytes, const std::string& pool) {
    available_bytes_ = bytes;
    pool_ = pool;
  }

  v1::PlanResponse Plan(const v1::Transition& transition) const {
    v1::PlanResponse plan;
    const bool wakes = transition.sleep_level() == 0;
    for (const std::string& tag : TagsToChange(transition)) {
      if (wakes) (*plan.mutable_map_bytes_by_tag())[tag] = kTagBytes;
      if (!wakes && resident_.at(tag)) (*plan.mutable_release_bytes_by_tag())[tag] = kTagBytes;
      if (wakes && tag == "weights") plan.set_reads_weights(weights_discarded_);
    }
    plan.set_available_bytes(available_bytes_);
    plan.set_memory_pool(pool_);
    return plan;
  }
  void Prepare(const v1::PrepareRequest& request) { prepared_ = request; }
  void Abort() { prepared_.Clear(); }
  // Does nothing for a transition that is not prepared.
  v1::CommitResponse Commit(uint64_t prepare_operation_id) {
    v1::CommitResponse response;
    if (prepared_.operation_id() != prepare_operation_id) return response;
    const int level = prepared_.transition().sleep_level();
    for (const std::string& tag : TagsToChange(prepared_.transition())) {
      v1::TagReport& report = (*response.mutable_tags())[tag];
      if (level == 0) report.set_mapped_bytes(kTagBytes);
      if (level > 0 && resident_[tag]) report.set_freed_bytes(kTagBytes);
      resident_[tag] = level == 0;
      if (tag == "weights") weights_discarded_ = level == 2;
    }
    for (const auto& [tag, resident] : resident_)
      (*response.mutable_tags())[tag].set_resident_bytes(resident ? kTagBytes : 0);
    (*response.mutable_tags())["weights"].set_host_bytes(HostBytes());
    if (level > 0) response.mutable_seconds()->set_release(kReleaseSeconds);
    prepared_.Clear();
    return response;
  }

  // The request in words.
  static std::string Describe(const v1::AllocateKvCacheRequest& request) {
    const v1::KvCacheConfig& cache = request.kv_cache();
    std::string text = absl::StrCat("allocate ", cache.num_blocks());
    if (cache.num_host_blocks() > 0) absl::StrAppend(&text, " and ", cache.num_host_blocks(), " on the host");
    if (cache.num_mapped_blocks() > 0 && cache.num_mapped_blocks() < cache.num_blocks())
      absl::StrAppend(&text, ", ", cache.num_mapped_blocks(), " mapped");
    return text + (request.defer_graphs() ? " without graphs" : "");
  }
  static std::string Describe(const v1::PrepareRequest& request) {
    const v1::Transition& transition = request.transition();
    const int level = transition.sleep_level();
    std::string text = level > 0 ? absl::StrCat("prepare sleep ", level) : "prepare wake";
    for (const std::string& tag : transition.tags()) absl::StrAppend(&text, " ", tag);
    for (const v1::BlockCopy& kept : transition.kept_blocks())
      absl::StrAppend(&text, " ", kept.src(), ">", kept.dst());
    return text;
  }
  static std::string Describe(const v1::LoadModelRequest& request) {
    const v1::ParallelConfig& parallel = request.parallel();
    std::string text = absl::StrCat("load ", parallel.rank(), "/", parallel.world_size());
    if (request.load_format() == v1::LOAD_FORMAT_NONE) text += " none";
    if (request.asleep_tags_size() > 0) absl::StrAppend(&text, " asleep ", request.sleep_level());
    for (const std::string& tag : request.asleep_tags()) absl::StrAppend(&text, " ", tag);
    return text;
  }
  void Load(const v1::LoadModelRequest& request) {
    for (const std::string& tag : request.asleep_tags()) resident_[tag] = false;
    weights_discarded_ = request.sleep_level() == 2;
  }
  void Allocate(const v1::KvCacheConfig& cache) { cache_ = cache; }
  void Resize(int32_t num_blocks, v1::ResizeKvCacheResponse* response) {
    cache_.set_num_mapped_blocks(num_blocks);
    response->set_kv_cache_bytes(10 * num_blocks);
  }

  std::vector<std::string> ResidentTags() const {
    std::vector<std::string> tags;
    for (const auto& [tag, resident] : resident_) {
      if (resident) tags.push_back(tag);
    }
    return tags;
  }
  void Fill(v1::WorkerStatusResponse* response) const {
    response->set_state(asleep() ? "asleep" : "awake");
    for (const auto& [tag, resident] : resident_)
      (*response->mutable_bytes_by_tag())[tag] = resident ? kTagBytes : 0;
    (*response->mutable_host_bytes_by_tag())["weights"] = HostBytes();
  }
  // Fills in the snapshot of a rank that is awake except for the tags that sleep here.
  void Fill(v1::WorkerSnapshot* snapshot) const {
    for (const std::string& tag : ResidentTags()) snapshot->add_resident_tags(tag);
    if (asleep() && snapshot->state() == "awake") snapshot->set_state("asleep");
    snapshot->set_sleep_level(sleep_level());
    snapshot->set_num_blocks(cache_.num_blocks());
    snapshot->set_num_mapped_blocks(cache_.num_mapped_blocks());
    snapshot->set_num_host_blocks(cache_.num_host_blocks());
  }
  bool asleep() const { return ResidentTags().size() < resident_.size(); }
  int sleep_level() const { return !asleep() ? 0 : weights_discarded_ ? 2 : 1; }

 private:
  int64_t HostBytes() const { return asleep() && !weights_discarded_ ? kTagBytes : 0; }
  std::vector<std::string> TagsToChange(const v1::Transition& transition) const {
    const auto& named = transition.tags();
    std::vector<std::string> tags;
    for (const auto& [tag, resident] : resident_) {
      if (!named.empty() && std::find(named.begin(), named.end(), tag) == named.end()) continue;
      const bool deepens = tag == "weights" && transition.sleep_level() == 2 && !weights_discarded_;
      if (transition.sleep_level() == 0 ? !resident : resident || deepens) tags.push_back(tag);
    }
    return tags;
  }

  std::map<std::string, bool> resident_ = {{"kv_cache", true}, {"weights", true}, {"workspace", true}};
  bool weights_discarded_ = false;
  v1::KvCacheConfig cache_;
  v1::PrepareRequest prepared_;
  int64_t available_bytes_ = 1000;
  std::string pool_;
};

}  // namespace somnus
