#pragma once
// A tokenizer whose detokenizing can be held up, so that a test can see who waits.

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "tests/api/fakes.h"

namespace somnus {

// Thread safe. The gate is open at first; the destructor opens the gate.
class Gate {
 public:
  ~Gate() { Open(); }
  void Close() { Set(false); }
  void Open() { Set(true); }
  void Pass() {
    absl::MutexLock lock(&mutex_);
    ++waiting_;
    mutex_.Await(absl::Condition(&open_));
    --waiting_;
  }
  // Returns when a thread waits in Pass.
  void AwaitWaiter() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](int* waiting) { return *waiting > 0; }, &waiting_));
  }

 private:
  void Set(bool open) {
    absl::MutexLock lock(&mutex_);
    open_ = open;
  }
  absl::Mutex mutex_;
  bool open_ ABSL_GUARDED_BY(mutex_) = true;
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The text of the token '!' comes only through the gate.
class GatedTokenizer : public ByteTokenizer {
 public:
  explicit GatedTokenizer(Gate* gate) : gate_(gate) {}
  const std::string& TokenBytes(int32_t id) const override {
    if (id == '!') gate_->Pass();
    return ByteTokenizer::TokenBytes(id);
  }

 private:
  Gate* const gate_;
};

inline ServedModel GatedModel(std::shared_ptr<FakeEngine> engine, Gate* gate) {
  ServedModel model = FakeModel(std::move(engine));
  model.tokenizer = std::make_shared<GatedTokenizer>(gate);
  return model;
}

}  // namespace somnus
