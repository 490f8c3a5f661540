#pragma once
// How many operators' calls of one kind, of one model, may be under way or wait at once. A call that waits
// holds a thread; so calls of one kind cannot take the threads of those that end their wait. Thread safe.

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace somnus {

class CallBounds {
 public:
  explicit CallBounds(int32_t most) : most_(most) {}
  CallBounds(const CallBounds&) = delete;

  // A call's place, as long as it lives. The bounds must outlive it.
  class Place {
   public:
    Place() = default;
    Place(Place&& other) : bounds_(std::exchange(other.bounds_, nullptr)), key_(std::move(other.key_)) {}
    Place& operator=(Place&& other) {
      std::swap(bounds_, other.bounds_);
      std::swap(key_, other.key_);
      return *this;
    }
    ~Place() {
      if (bounds_ != nullptr) bounds_->Leave(key_);
    }

   private:
    friend class CallBounds;
    using Key = std::pair<std::string, std::string>;
    Place(CallBounds* bounds, Key key) : bounds_(bounds), key_(std::move(key)) {}
    CallBounds* bounds_ = nullptr;
    Key key_;
  };

  // ResourceExhausted: as many calls of this kind are there already. `kind` as its caller calls it.
  absl::StatusOr<Place> Enter(const std::string& kind, const std::string& model);

 private:
  void Leave(const Place::Key& key);

  const int32_t most_;
  absl::Mutex mu_;
  std::map<Place::Key, int32_t> counts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace somnus
