#include "base/discovery.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <type_traits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/slurm_nodelist.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

constexpr int32_t kMaxIndex = 1023;
constexpr int32_t kMaxWorldSize = kMaxIndex + 1;
constexpr size_t kMaxHostBytes = 255;
constexpr size_t kMaxShownBytes = 80;
// The jobs of one node get ports of their own, below the range that Linux gives to outgoing connections
// (32768 and up).
constexpr int32_t kFirstSlurmPort = 20000;
constexpr int32_t kSlurmPorts = 10000;

// The start of a value, for messages.
std::string Shown(const std::string& value) {
  if (value.size() <= kMaxShownBytes) return absl::StrCat("'", value, "' ");
  return absl::StrCat("'", value.substr(0, kMaxShownBytes), "...' ");
}

absl::Status CheckHost(const std::string& host) {
  const auto good = [](char c) { return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_'; };
  const bool name = !host.empty() && host[0] != '-' && std::all_of(host.begin(), host.end(), good);
  in6_addr ignored;
  const bool v6 = inet_pton(AF_INET6, host.c_str(), &ignored) == 1;
  if ((name || v6) && host.size() <= kMaxHostBytes) return absl::OkStatus();
  return absl::InvalidArgumentError("is not the name or the address of a host");
}

absl::StatusOr<std::string> ParseHost(const std::string& text) {
  RETURN_IF_ERROR(CheckHost(text));
  return text;
}

std::function<absl::StatusOr<int32_t>(const std::string&)> NumberParser(int32_t low, int32_t high) {
  return [=](const std::string& text) -> absl::StatusOr<int32_t> {
    int32_t number;
    if (absl::SimpleAtoi(text, &number) && number >= low && number <= high) return number;
    return absl::InvalidArgumentError(absl::StrCat("is not a whole number from ", low, " to ", high));
  };
}

// One pass over the sources, from the first to the last.
class Search {
 public:
  explicit Search(const Environment& environment) : environment_(environment) {}

  absl::StatusOr<Discovery> Run() {
    RETURN_IF_ERROR(Own("SOMNUS_COORDINATOR", ParseCoordinatorAddress, &found_.coordinator));
    RETURN_IF_ERROR(Own("SOMNUS_WORLD_SIZE", NumberParser(1, kMaxWorldSize), &found_.world_size));
    RETURN_IF_ERROR(Own("SOMNUS_RANK", NumberParser(0, kMaxIndex), &found_.rank));
    RETURN_IF_ERROR(Own("SOMNUS_DEVICE_INDEX", NumberParser(0, kMaxIndex), &found_.device_index));
    RETURN_IF_ERROR(Own("SOMNUS_HOST", ParseHost, &found_.host));
    Slurm();
    LeaderWorkerSet();
    Torchrun();
    Mpi();
    return std::move(found_);
  }

 private:
  // Null for a variable that is not set, or empty.
  const std::string* Value(const std::string& variable) const {
    const auto at = environment_.find(variable);
    return at == environment_.end() || at->second.empty() ? nullptr : &at->second;
  }

  template <typename Parse, typename T>
  absl::Status Own(const std::string& variable, const Parse& parse, std::optional<Found<T>>* field) {
    const std::string* value = Value(variable);
    if (value == nullptr) return absl::OkStatus();
    absl::StatusOr<T> parsed = parse(*value);
    if (!parsed.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(variable, ": ", Shown(*value), parsed.status().message()));
    }
    *field = Found<T>{*std::move(parsed), variable};
    return absl::OkStatus();
  }

  // Sets `field` unless it is set: a launcher's variable, which is passed over when malformed.
  template <typename Parse, typename T>
  void Offer(const std::string& variable, const Parse& parse, std::optional<Found<T>>* field) {
    if (field->has_value()) return;
    if (const absl::Status status = Own(variable, parse, field); !status.ok()) {
      found_.passed_over.push_back(std::string(status.message()));
    }
  }

  void OfferRank(const std::string& variable) { Offer(variable, NumberParser(0, kMaxIndex), &found_.rank); }
  void OfferWorldSize(const std::string& variable) {
    Offer(variable, NumberParser(1, kMaxWorldSize), &found_.world_size);
  }

  // The index on its host is the index of its GPU, unless the launcher shows each process only its own.
  void OfferLocalRank(const std::string& variable) {
    if (found_.device_index.has_value() || Value(variable) == nullptr) return;
    const std::string* visible = Value("CUDA_VISIBLE_DEVICES");
    if (visible != nullptr && !absl::StrContains(*visible, ',')) {
      found_.device_index = Found<int32_t>{0, "CUDA_VISIBLE_DEVICES"};
    } else {
      Offer(variable, NumberParser(0, kMaxIndex), &found_.device_index);
    }
  }

  // The coordinator runs on the job's first node, and each job has a port. Outside a step (in the batch
  // script) there is no task that could be a rank. A step of one task is the coordinator's, or was started by
  // hand: such a step tells neither a rank nor the number of workers.
  void Slurm() {
    const std::string* job = Value("SLURM_JOB_ID");
    if (job == nullptr) return;
    const auto parse = [job](const std::string& list) -> absl::StatusOr<CoordinatorAddress> {
      ASSIGN_OR_RETURN(const std::string node, FirstSlurmNode(list));
      uint32_t id;
      if (!absl::SimpleAtoi(*job, &id)) return absl::InvalidArgumentError("comes without a SLURM_JOB_ID");
      return CoordinatorAddress{node, kFirstSlurmPort + static_cast<int32_t>(id % kSlurmPorts)};
    };
    Offer("SLURM_JOB_NODELIST", parse, &found_.coordinator);
    if (Value("SLURM_STEP_ID") == nullptr) {
      OfferWorldSize("SLURM_NTASKS");
    } else if (const std::string* tasks = Value("SLURM_STEP_NUM_TASKS"); tasks != nullptr && *tasks != "1") {
      OfferWorldSize("SLURM_STEP_NUM_TASKS");
      OfferRank("SLURM_PROCID");
      OfferLocalRank("SLURM_LOCALID");
    }
  }

  void LeaderWorkerSet() {
    const auto parse = [](const std::string& host) -> absl::StatusOr<CoordinatorAddress> {
      RETURN_IF_ERROR(CheckHost(host));
      return CoordinatorAddress{host, kClusterPort};
    };
    Offer("LWS_LEADER_ADDRESS", parse, &found_.coordinator);
    OfferWorldSize("LWS_GROUP_SIZE");
    OfferRank("LWS_WORKER_INDEX");
  }

  void Torchrun() {
    const std::string* port = Value("MASTER_PORT");
    const auto parse = [port](const std::string& host) -> absl::StatusOr<CoordinatorAddress> {
      RETURN_IF_ERROR(CheckHost(host));
      CoordinatorAddress address{host, kClusterPort};
      if (port == nullptr) return address;
      const absl::StatusOr<int32_t> number = NumberParser(1, 65535)(*port);
      if (!number.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat("comes with a MASTER_PORT that ", number.status().message()));
      }
      address.port = *number;
      return address;
    };
    Offer("MASTER_ADDR", parse, &found_.coordinator);
    OfferWorldSize("WORLD_SIZE");
    OfferRank("RANK");
    OfferLocalRank("LOCAL_RANK");
  }

  // MPI's launchers tell no address.
  void Mpi() {
    for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) OfferWorldSize(variable);
    for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"}) OfferRank(variable);
    for (const char* variable : {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"}) OfferLocalRank(variable);
  }

  const Environment& environment_;
  Discovery found_;
};

template <typename T>
void Describe(const char* name, const std::optional<Found<T>>& field, std::vector<std::string>* parts) {
  if (!field.has_value()) return;
  if constexpr (std::is_same_v<T, CoordinatorAddress>) {
    parts->push_back(absl::StrCat(name, " ", field->value.Text(), " from ", field->variable));
  } else {
    parts->push_back(absl::StrCat(name, " ", field->value, " from ", field->variable));
  }
}

}  // namespace

Environment ProcessEnvironment() {
  Environment environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (const size_t equals = text.find('='); equals != std::string::npos) {
      environment.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return environment;
}

std::string CoordinatorAddress::Text() const {
  if (port == 0) return host;
  return absl::StrContains(host, ':') ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

std::string CoordinatorAddress::ListenHost() const {
  in6_addr ignored;
  if (inet_pton(AF_INET, host.c_str(), &ignored) == 1) return host;
  if (inet_pton(AF_INET6, host.c_str(), &ignored) == 1) return absl::StrCat("[", host, "]");
  return "0.0.0.0";
}

absl::StatusOr<CoordinatorAddress> ParseCoordinatorAddress(const std::string& text) {
  if (absl::StartsWith(text, "unix:/")) return CoordinatorAddress{text, 0};
  const absl::Status wrong = absl::InvalidArgumentError("is neither host:port nor unix:/path");
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return wrong;
  std::string host = text.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  // Without brackets the last part of an IPv6 address would be taken for a port.
  if (absl::StrContains(host, ':') != bracketed) return wrong;
  const absl::StatusOr<int32_t> port = NumberParser(1, 65535)(text.substr(colon + 1));
  if (!port.ok() || !CheckHost(host).ok()) return wrong;
  return CoordinatorAddress{host, *port};
}

std::string DescribeDiscovery(const Discovery& discovery) {
  std::vector<std::string> parts;
  Describe("coordinator", discovery.coordinator, &parts);
  Describe("world size", discovery.world_size, &parts);
  Describe("rank", discovery.rank, &parts);
  Describe("device index", discovery.device_index, &parts);
  Describe("host", discovery.host, &parts);
  for (const std::string& variable : discovery.passed_over) {
    parts.push_back(absl::StrCat("passed over ", variable));
  }
  return absl::StrJoin(parts, ", ");
}

absl::StatusOr<Discovery> Discover(const Environment& environment) { return Search(environment).Run(); }

}  // namespace somnus
