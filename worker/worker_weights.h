#pragma once
// The rank's weights over their life: which files they were read from, the backup that the files are while
// the weights sleep, the reload and the update that replace the weights in place, and the reading ahead of a
// wake-up.
//
// Owns the record of the weights, the backup, the prefetch and the update; borrows the load, whose runner has
// the weights themselves. No step runs while the weights are stale.
//
// Thread safety: for the runner thread alone, but for record() and backup_bytes().

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_stamp.h"
#include "proto/worker.pb.h"
#include "worker/checkpoint_backup.h"
#include "worker/lifecycle.h"
#include "worker/rank_update.h"
#include "worker/weight_checksums.h"
#include "worker/weight_prefetch.h"
#include "worker/weights_record.h"
#include "worker/worker_load.h"
#include "worker/worker_parts.h"

namespace somnus {

class WorkerWeights {
 public:
  // A checkpoint's files, as they were when the weights were read.
  struct Source {
    std::string fingerprint;
    CheckpointStamp stamp;  // taken where the checkpoint may be the backup
  };
  struct Files {
    Source source;
    std::unique_ptr<Checkpoint> checkpoint;  // opened
  };

  WorkerWeights(const WorkerParts* parts, const Lifecycle* lifecycle, const WorkerLoad* load)
      : parts_(*parts), lifecycle_(*lifecycle), load_(*load) {}

  // The load, after WorkerLoad::Begin: opens the files that the request names. Without a source the files
  // give the layout alone, and config.json is enough; such a rank reads its files in a later call.
  absl::StatusOr<Files> OpenForLoad();
  // After WorkerLoad::LoadRunner: notes what the memory has now, and fills the event.
  void SetLoaded(const Source& source, v1::LoadModelEvent* event);

  absl::StatusOr<v1::WorkerReloadWeightsResponse> Reload(const v1::WorkerReloadWeightsRequest& request);
  absl::Status BeginUpdate(const v1::BeginWeightUpdateRequest& request);
  absl::Status AddChunk(uint64_t stream, const v1::WeightChunk& chunk);
  absl::Status FinishUpdate(const v1::FinishWeightUpdateRequest& request);
  // Checksums of the weights that are there now; AddToChecksums reads their next part. FailedPrecondition:
  // the memory sleeps, or the weights are stale; Aborted: they are not the weights of BeginChecksums.
  absl::StatusOr<std::unique_ptr<WeightChecksums>> BeginChecksums() const;
  absl::Status AddToChecksums(WeightChecksums* sums) const;
  RankUpdate* update() { return &update_; }

  // While weights of a checkpoint sleep: begins to bring their bytes into the page cache, unless that has
  // begun since the weights fell asleep. Returns at once.
  absl::StatusOr<v1::PrefetchResponse> Prefetch(double cpu_share);
  void EndPrefetch() { prefetch_.reset(); }

  // Ok when a wake-up can read stale weights from their source.
  absl::Status RequireSource() const;
  // Whether a level-1 sleep would leave the weights to their checkpoint.
  bool CheckpointBacksUp() const;
  // Whether a wake-up that has weights among its tags reads them from their source. `skip` as
  // Transition.skip_weights_load; a checkpoint that is the backup is read in any case.
  bool WakeReads(bool skip) const;
  // Reads the source into memory that was discarded, or is stale. FailedPrecondition: the files have changed.
  absl::StatusOr<Source> ReadSource(const ModelRunner::Progress& progress);
  // The memory of the weights was released. `checkpoint_backs_up`: CheckpointBacksUp at the sleep's Prepare.
  // Corrects the report of the allocator, which knows no backup but its own.
  void CommitSleep(int level, bool checkpoint_backs_up, v1::TagReport* report);
  // The memory of the weights is mapped. `read`: the result of ReadSource; null: the weights were not read.
  void CommitWake(const Source* read);

  const WeightsRecord& record() const { return record_; }
  // The bytes of the weights that sleep, and that the checkpoint alone has.
  int64_t backup_bytes() const { return backup_.bytes(); }

 private:
  absl::StatusOr<Files> OpenFiles(const std::string& path) const;
  absl::StatusOr<Files> OpenForLayout();
  absl::StatusOr<Files> OpenForReload(const std::string& path) const;
  void SetRead(int64_t version, const Source& source);
  absl::Status CheckBackup() const;
  // Ok when the weights' memory is mapped, and no transition is prepared. The error names the call.
  absl::Status RequireMapped(const char* call) const;

  const WorkerParts& parts_;
  const Lifecycle& lifecycle_;
  const WorkerLoad& load_;
  WeightsRecord record_;
  std::string path_;                            // of the files that were read last, for the next wake-up
  LoadFormat load_format_ = LoadFormat::kAuto;  // of the files that reloads read
  CheckpointBackup backup_;
  std::unique_ptr<WeightPrefetch> prefetch_;  // of weights that a wake-up will read; may have ended
  RankUpdate update_;
};

}  // namespace somnus
