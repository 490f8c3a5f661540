#pragma once
// Bounds the operators' calls of a kind and a model that are under way or wait at once. A call that waits
// holds a thread; so calls of a kind cannot take the threads of the calls that end the wait. Thread safe.

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

  // The place that a call takes until the Place is destroyed. The CallBounds must outlive every Place.
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

  // ResourceExhausted: all places of this kind and model are taken; `kind` names the calls in the message.
  absl::StatusOr<Place> Enter(const std::string& kind, const std::string& model);

 private:
  void Leave(const Place::Key& key);

  const int32_t most_;
  absl::Mutex mu_;
  std::map<Place::Key, int32_t> counts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace somnus
