#pragma once
// The results of the last lifecycle operations of an epoch, so that a call that is sent again is not done
// again: it waits for the first one's result, or returns it.
//
// Bounds: kMaxOperations records. A record holds one serialized response, whose maps have an entry per memory
// tag, or a status whose message is cut at kMaxMessageBytes: about 70 KiB in all.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace somnus {

// Thread safe.
class OperationLog {
 public:
  static constexpr int kMaxOperations = 16;
  static constexpr size_t kMaxMessageBytes = 4096;

  struct Operation {
    int64_t epoch = 0;
    uint64_t id = 0;        // unique in its epoch; never 0
    const char* call = "";  // the RPC's name
  };
  // Returns the serialized response.
  using Work = std::function<absl::StatusOr<std::string>()>;

  // Forgets the operations of older epochs. Operations under way end without a record.
  void BeginEpoch(int64_t epoch);

  // Runs `work` on the calling thread and records its result; or, for an operation that is known, waits for
  // its result without calling `work`. `cancelled` is asked now and then by a call that waits: Cancelled once
  // it returns true. InvalidArgument: the id is 0, or belongs to another call. FailedPrecondition: the epoch
  // is over. ResourceExhausted: kMaxOperations are under way.
  absl::StatusOr<std::string> Run(const Operation& operation, const std::function<bool()>& cancelled,
                                  const Work& work);

 private:
  struct Record;

  // The record of a known operation; or nullptr and a new record in *added.
  absl::StatusOr<std::shared_ptr<Record>> Find(const Operation& operation, std::shared_ptr<Record>* added);
  absl::Status MakeRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  absl::Mutex mu_;
  int64_t epoch_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t next_age_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<uint64_t, std::shared_ptr<Record>> records_ ABSL_GUARDED_BY(mu_);  // by operation id
};

}  // namespace somnus
