#include "coordinator/executor/memory_check.h"

#include <algorithm>
#include <utility>

#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_message.h"
#include "proto/missing_memory.h"

namespace somnus {
namespace {

struct Account {
  std::vector<size_t> ranks;  // that need something
  int64_t needed = 0;
  int64_t available = 0;
};

int64_t SumOf(const std::map<std::string, int64_t>& bytes_by_tag) {
  int64_t sum = 0;
  for (const auto& [tag, bytes] : bytes_by_tag) sum += bytes;
  return sum;
}

std::map<std::string, Account> AccountsOf(const std::vector<RankNeed>& ranks) {
  std::map<std::string, Account> accounts;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const int64_t needed = SumOf(ranks[rank].bytes_by_tag);
    if (needed == 0) continue;
    Account& account = accounts[ranks[rank].account];
    const int64_t available = std::max<int64_t>(0, ranks[rank].available_bytes);
    account.available = account.ranks.empty() ? available : std::min(account.available, available);
    account.needed += needed;
    account.ranks.push_back(rank);
  }
  return accounts;
}

std::string Describe(const RankNeed& rank) {
  std::string text = rank.name;
  const char* separator = " needs ";
  for (const auto& [tag, bytes] : rank.bytes_by_tag)
    absl::StrAppend(&text, std::exchange(separator, ", "), bytes, " bytes for ", tag);
  return text;
}

// Divides the missing bytes of the account. The running sum over tags is rounded down, so that the parts add
// up to the whole.
void AddShortages(const std::vector<RankNeed>& ranks, const Account& account, v1::MissingMemory* missing) {
  const absl::int128 lacking = account.needed - account.available;
  int64_t needed_before = 0, missing_before = 0;
  for (const size_t rank : account.ranks) {
    for (const auto& [tag, bytes] : ranks[rank].bytes_by_tag) {
      needed_before += bytes;
      const auto up_to_here = static_cast<int64_t>(lacking * needed_before / account.needed);
      const int64_t part = up_to_here - std::exchange(missing_before, up_to_here);
      if (part == 0) continue;
      v1::MissingMemory::Shortage* shortage = missing->add_shortages();
      shortage->set_rank(static_cast<int32_t>(rank));
      shortage->set_tag(tag);
      shortage->set_needed_bytes(bytes);
      shortage->set_missing_bytes(part);
      shortage->set_memory("device");
    }
  }
}

}  // namespace

absl::Status CheckMemory(const std::vector<RankNeed>& ranks) {
  std::vector<std::string> problems;
  v1::MissingMemory missing;
  for (const auto& [name, account] : AccountsOf(ranks)) {
    if (account.needed <= account.available) continue;
    const auto describe = [&](std::string* text, size_t rank) {
      absl::StrAppend(text, Describe(ranks[rank]));
    };
    problems.push_back(absl::StrCat(absl::StrJoin(account.ranks, "; ", describe), ": ", account.available,
                                    " available, ", account.needed - account.available, " missing"));
    AddShortages(ranks, account, &missing);
  }
  if (problems.empty()) return absl::OkStatus();
  return WithMissing(absl::ResourceExhaustedError(absl::StrJoin(problems, "; ")), missing);
}

absl::Status CheckMemoryOfReplicas(const std::vector<std::vector<RankNeed>>& replicas) {
  std::vector<RankNeed> all;
  std::vector<std::pair<size_t, size_t>> ranks;  // replica and rank of each element of `all`
  for (size_t replica = 0; replica < replicas.size(); ++replica) {
    for (size_t rank = 0; rank < replicas[replica].size(); ++rank) {
      RankNeed need = replicas[replica][rank];
      const bool is_own = need.account == need.name;
      need.name = absl::StrCat("replica ", replica, " ", need.name);
      if (is_own) need.account = need.name;
      all.push_back(std::move(need));
      ranks.emplace_back(replica, rank);
    }
  }
  const absl::Status status = CheckMemory(all);
  if (status.ok()) return status;
  v1::MissingMemory missing = MissingOf(status);
  for (v1::MissingMemory::Shortage& shortage : *missing.mutable_shortages()) {
    const auto [replica, rank] = ranks[shortage.rank()];
    shortage.set_replica(static_cast<int32_t>(replica));
    shortage.set_rank(static_cast<int32_t>(rank));
  }
  return WithMissing(status, missing);
}

absl::Status WithMissingOfAll(const absl::Status& first, const std::vector<absl::Status>& errors) {
  if (!absl::IsResourceExhausted(first)) return first;
  std::vector<absl::string_view> messages;
  v1::MissingMemory missing;
  for (const absl::Status& error : errors) {
    if (!absl::IsResourceExhausted(error)) continue;
    messages.push_back(error.message());
    missing.MergeFrom(MissingOf(error));
  }
  return WithMissing(WithMessage(first, absl::StrJoin(messages, "; ")), missing);
}

absl::Status OfReplica(size_t replica, const absl::Status& status) {
  v1::MissingMemory missing = MissingOf(status);
  for (v1::MissingMemory::Shortage& shortage : *missing.mutable_shortages())
    shortage.set_replica(static_cast<int32_t>(replica));
  return WithMissing(WithMessage(status, absl::StrCat("replica ", replica, ": ", status.message())), missing);
}

}  // namespace somnus
