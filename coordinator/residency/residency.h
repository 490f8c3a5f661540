#pragma once
// Which tags of a model's memory sleep, on every rank alike, and how deep. A value; not thread safe.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace somnus {

// Bytes that a collective freed or mapped, summed over the ranks.
using TagBytes = std::map<std::string, int64_t>;

class Residency {
 public:
  // Every tag is resident.
  bool awake() const { return asleep_.empty(); }
  // No tag is resident.
  bool fully_asleep() const;
  // The level that every rank has reached: 0 when awake; 2 when a wake-up has to read the weights from the
  // checkpoint, or has read them but another tag still sleeps; 1 otherwise.
  int level() const { return level_; }
  // At level 1, after a sleep at level 2 that failed: some ranks may have discarded their weights all the
  // same. They must all do so before a wake-up, since what is read again may not be what others kept.
  bool levels_differ() const { return levels_differ_; }
  const std::set<std::string>& asleep() const { return asleep_; }
  // Whether waking `tags` reads the checkpoint, which takes as long as a load.
  bool WakeReadsWeights(const std::vector<std::string>& tags) const;
  // Those of `tags` that sleep, sorted and each once; every tag that sleeps when `tags` is empty.
  std::vector<std::string> ToWake(const std::vector<std::string>& tags) const;

  // Whether a sleep at `level` would change anything.
  bool SleepChanges(int level) const;
  // All tags sleep. Weights that were discarded before stay so, whatever `level` says.
  void Slept(int level);
  // All tags sleep after a sleep at `level` that failed: each rank may have reached that level or not.
  void SleptInPart(int level);
  void Woke(const std::vector<std::string>& tags);

 private:
  std::set<std::string> asleep_;
  int level_ = 0;
  bool levels_differ_ = false;
};

}  // namespace somnus
