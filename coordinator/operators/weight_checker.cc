#include "coordinator/operators/weight_checker.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/monotonic.h"
#include "coordinator/http/json_body.h"

namespace somnus {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxNamed = 8;  // tensors in a message

// FNV-1a over names and checksums: for people and scripts that compare two numbers, not against an adversary.
class Combined {
 public:
  void Add(const TensorChecksum& tensor) {
    for (const char c : tensor.name) AddByte(static_cast<unsigned char>(c));
    for (int i = 0; i < 64; i += 8) AddByte(static_cast<unsigned char>(tensor.checksum >> i));
  }
  std::string Hex() const { return absl::StrFormat("%016x", hash_); }

 private:
  void AddByte(unsigned char byte) { hash_ = (hash_ ^ byte) * 0x100000001b3; }
  uint64_t hash_ = 0xcbf29ce484222325;
};

std::string WhereIs(const RankChecksums& rank) {
  return absl::StrCat(rank.replica > 0 ? absl::StrCat("replica ", rank.replica, " ") : "", "rank ",
                      rank.rank);
}

// Names the differences; empty: there is none.
std::string Differences(const ModelChecksums& before, const ModelChecksums& now) {
  if (before.size() != now.size())
    return absl::StrCat("there are ", now.size(), " ranks, and there were ", before.size());
  std::vector<std::string> named;
  size_t count = 0;
  for (size_t i = 0; i < now.size(); ++i) {
    const std::vector<TensorChecksum>&old = before[i].tensors, &own = now[i].tensors;
    if (old.size() != own.size())
      return absl::StrCat(WhereIs(now[i]), " has ", own.size(), " tensors, and had ", old.size());
    for (size_t k = 0; k < own.size(); ++k) {
      if (own[k] == old[k]) continue;
      if (++count <= kMaxNamed) named.push_back(absl::StrCat(own[k].name, " of ", WhereIs(now[i])));
    }
  }
  if (count == 0) return "";
  return absl::StrCat(count, " tensors differ: ", absl::StrJoin(named, ", "),
                      count > named.size() ? ", ..." : "");
}

// Whether all replicas have the same weights; null where there is one replica.
Json ReplicasAgree(const ModelChecksums& sums) {
  if (sums.empty() || sums.back().replica == 0) return nullptr;
  return std::all_of(sums.begin(), sums.end(), [&](const RankChecksums& rank) {
    const auto first =
        std::find_if(sums.begin(), sums.end(), [&](const auto& other) { return other.rank == rank.rank; });
    return first->tensors == rank.tensors;
  });
}

Json RanksOf(const ModelChecksums& sums, bool with_tensors) {
  Json ranks = Json::array();
  for (const RankChecksums& rank : sums) {
    Combined combined;
    int64_t bytes = 0;
    Json tensors = Json::object();
    for (const TensorChecksum& tensor : rank.tensors) {
      combined.Add(tensor);
      bytes += tensor.bytes;
      if (with_tensors) tensors[tensor.name] = absl::StrFormat("%016x", tensor.checksum);
    }
    Json one = {{"replica", rank.replica},
                {"rank", rank.rank},
                {"checksum", combined.Hex()},
                {"num_tensors", rank.tensors.size()},
                {"num_bytes", bytes}};
    if (with_tensors) one["tensors"] = std::move(tensors);
    ranks.push_back(std::move(one));
  }
  return ranks;
}

std::string ChecksumOf(const ModelChecksums& sums) {
  Combined combined;
  for (const RankChecksums& rank : sums) {
    for (const TensorChecksum& tensor : rank.tensors) combined.Add(tensor);
  }
  return combined.Hex();
}

// By vLLM's names of ranks and tensors.
std::map<std::string, std::string> ByName(const ModelChecksums& sums) {
  std::map<std::string, std::string> named;
  for (const RankChecksums& rank : sums) {
    const std::string prefix =
        absl::StrCat("dp", rank.replica, ":pp", rank.stage, ":pcp0:tp", rank.rank_of_stage, ":");
    for (const TensorChecksum& tensor : rank.tensors)
      named[absl::StrCat(prefix, tensor.name)] = absl::StrFormat("%016x", tensor.checksum);
  }
  return named;
}

// A client's own snapshot: checksums as an answer to `checksum` had them.
struct Baseline {
  std::optional<std::map<std::string, std::string>> checksums;  // nullopt: the body has none
  std::optional<ApiError> error;
};

Baseline ReadBaseline(absl::string_view body) {
  constexpr char kField[] = "baseline";
  const absl::StatusOr<nlohmann::json> object = ParseJsonObject(body, JsonLimits());
  if (!object.ok()) return {};
  const nlohmann::json given = object->value(kField, nlohmann::json());
  if (given.is_null()) return {};
  const auto is_text = [](const nlohmann::json& value) { return value.is_string(); };
  if (!given.is_object() || !std::all_of(given.begin(), given.end(), is_text))
    return {.checksums = std::nullopt,
            .error = BadRequest(kField, "baseline must be the object `checksums` of an earlier answer")};
  return {.checksums = given.get<std::map<std::string, std::string>>(), .error = std::nullopt};
}

// vLLM's answer: the names whose checksums differ, or that one side alone has.
Json Comparison(const std::map<std::string, std::string>& before,
                const std::map<std::string, std::string>& now) {
  std::set<std::string> mismatches;
  for (const auto& [name, checksum] : now) {
    const auto found = before.find(name);
    if (found == before.end() || found->second != checksum) mismatches.insert(name);
  }
  for (const auto& [name, checksum] : before) {
    if (now.count(name) == 0) mismatches.insert(name);
  }
  return {{"match", mismatches.empty()}, {"mismatches", mismatches}};
}

// Nullopt: there is such an action.
std::optional<ApiError> CheckAction(const std::string& action) {
  if (action == "checksum" || action == "snapshot" || action == "compare") return std::nullopt;
  // vLLM writes zeros over weights that it goes on to serve.
  if (action == "reset")
    return BadRequest(
        "action",
        "there is no reset: a sleep at level 2 and a wake-up with load_weights=false leave stale "
        "weights, which nobody is served with until an update or a reload has brought all");
  return BadRequest("action", "action must be checksum, snapshot or compare");
}

HttpResponse Conflict(std::string message) { return ErrorResponse({409, std::move(message), ""}); }

// Of the worker's words about the state of the weights; other errors are the server's.
HttpResponse NoChecksums(const absl::Status& status) {
  const bool is_state = absl::IsFailedPrecondition(status) || absl::IsAborted(status);
  return is_state ? Conflict(CleanMessage(status.message())) : ErrorResponse(FromStatus(status));
}

}  // namespace

HttpResponse CheckWeights(const ServedModel& model, const LifecycleParameters& parameters,
                          absl::string_view body) {
  const std::vector<std::string>& actions = parameters.Values("action");
  const std::string action = actions.empty() ? "" : actions.back();
  if (const auto error = CheckAction(action)) return ErrorResponse(*error);
  bool with_tensors = false;
  if (const auto error = parameters.ReadBool("tensors", &with_tensors)) return ErrorResponse(*error);
  const Baseline baseline = action == "compare" ? ReadBaseline(body) : Baseline();
  if (baseline.error.has_value()) return ErrorResponse(*baseline.error);
  const std::optional<ModelChecksums> kept = model.weight_snapshot->Get();
  if (action == "compare" && !kept.has_value() && !baseline.checksums.has_value())
    return Conflict("there is nothing to compare with: the action snapshot comes first");
  if (model.weight_checksums == nullptr)
    return ErrorResponse({501, "this server has no checksums of weights", ""});
  const MonotonicTime begin = MonotonicNow();
  absl::StatusOr<ModelChecksums> sums = model.weight_checksums();
  if (!sums.ok()) return NoChecksums(sums.status());
  if (baseline.checksums.has_value()) return JsonResponse(Comparison(*baseline.checksums, ByName(*sums)));
  if (action == "compare") {
    if (const std::string differences = Differences(*kept, *sums); !differences.empty())
      return Conflict(absl::StrCat("the weights are not those of the snapshot: ", differences));
  }
  Json answer = {{"success", true},
                 {"action", action},
                 {"weight_version", sums->empty() ? 0 : sums->front().weights_version},
                 {"checksum", ChecksumOf(*sums)},
                 {"replicas_agree", ReplicasAgree(*sums)},
                 {"ranks", RanksOf(*sums, with_tensors)},
                 {"seconds", absl::ToDoubleSeconds(MonotonicNow() - begin)}};
  if (action == "checksum") answer["checksums"] = ByName(*sums);
  if (action == "snapshot") model.weight_snapshot->Set(*std::move(sums));
  return JsonResponse(answer);
}

}  // namespace somnus
