#include "worker/core_shares.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace somnus {
namespace {

constexpr double kLeastGain = 0.25;

// Cores of the same speed.
struct Kind {
  double speed;
  std::vector<int> cores;
  int per_rank = 0;  // that compute
  double gain = 0;   // the share that these cores add to the faster cores; 0: nothing faster computes
  bool adds_little = false;
};

// The fastest first.
std::vector<Kind> KindsOf(absl::Span<const int> cores, const std::map<int, double>& speeds) {
  std::map<double, std::vector<int>, std::greater<>> by_speed;
  for (const int cpu : cores) by_speed[SpeedOf(speeds, cpu)].push_back(cpu);
  std::vector<Kind> kinds;
  for (auto& [speed, cpus] : by_speed) kinds.push_back({speed, std::move(cpus)});
  return kinds;
}

// Chooses how many of each kind compute, and returns their number for a rank.
int Choose(const CoreSharesRequest& request, std::vector<Kind>* kinds) {
  const bool is_told = request.num_threads > 0;
  const int most = is_told ? request.num_threads : request.most_threads;
  int threads = 0;
  double sum = 0;
  for (Kind& kind : *kinds) {
    const int count = std::min(static_cast<int>(kind.cores.size()) / request.ranks, most - threads);
    const double added = count * kind.speed;
    if (sum > 0) kind.gain = added / sum;
    kind.adds_little = !is_told && count > 0 && sum > 0 && kind.gain < kLeastGain;
    if (kind.adds_little) break;
    kind.per_rank = count;
    threads += count;
    sum += added;
  }
  return threads;
}

// "one thread for each core: 6 of speed 1, 8 of 0.37 (+49%), none of 0.12 (+3%, less than 25%)"
std::string Describe(const std::vector<Kind>& kinds) {
  std::vector<std::string> texts;
  for (const Kind& kind : kinds) {
    if (kind.per_rank == 0 && !kind.adds_little) continue;
    std::string text = kind.adds_little ? "none" : absl::StrCat(kind.per_rank);
    absl::StrAppendFormat(&text, " of %s%.2g", texts.empty() ? "speed " : "", kind.speed);
    if (kind.gain > 0) absl::StrAppendFormat(&text, " (+%.0f%%", 100 * kind.gain);
    if (kind.adds_little) absl::StrAppendFormat(&text, ", less than %.0f%%", 100 * kLeastGain);
    if (kind.gain > 0) text += ")";
    texts.push_back(std::move(text));
  }
  return absl::StrCat("one thread for each core: ", absl::StrJoin(texts, ", "));
}

}  // namespace

double SpeedOf(const std::map<int, double>& speeds, int cpu) {
  const auto speed = speeds.find(cpu);
  return speed == speeds.end() ? 1 : speed->second;
}

std::optional<CoreShares> ShareCores(const CoreSharesRequest& request, const std::map<int, double>& speeds) {
  std::vector<Kind> kinds = KindsOf(request.cores, speeds);
  if (kinds.size() < 2) return std::nullopt;
  CoreShares shares;
  shares.num_threads = Choose(request, &kinds);
  if (shares.num_threads == 0 || (request.num_threads > 0 && shares.num_threads != request.num_threads))
    return std::nullopt;
  for (int rank = 0; rank < request.ranks; ++rank) {
    for (const Kind& kind : kinds) {
      const auto first = kind.cores.begin() + rank * kind.per_rank;
      shares.cpus.insert(shares.cpus.end(), first, first + kind.per_rank);
    }
  }
  for (const Kind& kind : kinds)
    shares.cpus.insert(shares.cpus.end(), kind.cores.begin() + request.ranks * kind.per_rank,
                       kind.cores.end());
  shares.cpus.insert(shares.cpus.end(), request.others.begin(), request.others.end());
  if (request.num_threads == 0) shares.description = Describe(kinds);
  return shares;
}

}  // namespace somnus
