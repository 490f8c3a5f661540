// The commands status, pause, resume, reload-weights, abort-call and roll.
#include <google/protobuf/util/json_util.h>
#include <stdio.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/bytes_text.h"
#include "base/status_macros.h"
#include "tools/cli/commands.h"
#include "tools/cli/control_client.h"
#include "tools/cli/control_options.h"
#include "tools/cli/model_list.h"
#include "tools/cli/server.h"
#include "tools/cli/terminal.h"
#include "tools/cli/text_table.h"

namespace somnus::cli {
namespace {

constexpr int kFieldWidth = 10;  // of a field's name and the blanks behind

// "state     awake", in several lines where the terminal is narrow. `value` is Printable, or has colours.
void PrintShownField(absl::string_view name, const std::string& value) {
  puts(Wrap(absl::StrFormat("%-*s%s", kFieldWidth, name, value), OutputColumns(), kFieldWidth).c_str());
}

void PrintField(absl::string_view name, absl::string_view value) { PrintShownField(name, Printable(value)); }

void PrintReplica(const v1::ReplicaStatus& replica) {
  const std::string line =
      absl::StrFormat("replica %d %s, epoch %d, recoveries %d, %d running, %d waiting%s", replica.replica(),
                      StateText(replica.state()), replica.group_epoch(), replica.num_recoveries(),
                      replica.num_requests_running(), replica.num_requests_waiting(),
                      replica.error().empty() ? "" : ": " + Printable(replica.error()));
  puts(Wrap(line, OutputColumns(), 2).c_str());
}

// Ranks are counted within their replica.
void PrintRanks(const v1::GetStatusResponse& status) {
  if (status.ranks().empty()) return;
  TextTable table({"rank", "pid", "host", "device", "weights", "kv_cache", "workspace", "NUMA"}, 4);
  for (const v1::RankStatus& rank : status.ranks()) {
    const auto bytes = [&rank](const char* tag) {
      const auto found = rank.bytes_by_tag().find(tag);
      return BytesText(found == rank.bytes_by_tag().end() ? 0 : found->second);
    };
    const std::string name = status.replicas().empty() ? absl::StrCat(rank.rank())
                                                       : absl::StrCat(rank.replica(), ".", rank.rank());
    table.Add({name, absl::StrCat(rank.pid()), Printable(rank.host()), Printable(rank.device()),
               bytes("weights"), bytes("kv_cache"), bytes("workspace"),
               absl::StrCat(Printable(rank.numa()), rank.error().empty() ? "" : "  ",
                            Styled(STDOUT_FILENO, Style::kRed, Printable(rank.error())))});
  }
  fputs(table.Text(OutputColumns()).c_str(), stdout);
}

// The sleeping memory of all ranks, and retained backups. Nothing where the ranks hold no backups.
void PrintBackups(const v1::GetStatusResponse& status) {
  int64_t host = 0, files = 0;
  for (const v1::RankStatus& rank : status.ranks()) {
    for (const auto& [tag, bytes] : rank.host_bytes_by_tag()) host += bytes;
    for (const auto& [tag, bytes] : rank.file_bytes_by_tag()) files += bytes;
  }
  if (host + files > 0)
    PrintField("backups", absl::StrCat(BytesText(host), " of host memory, ", BytesText(files), " of files"));
}

void PrintServer(const Server& server, const v1::GetStatusResponse& status) {
  const std::string uptime =
      status.uptime_s() < 1 ? "0s"
                            : absl::FormatDuration(absl::Seconds(static_cast<int64_t>(status.uptime_s())));
  PrintField("address", absl::StrCat(server.http.Url(), ", gRPC ", server.grpc.ToString()));
  PrintField("version", absl::StrCat(status.version(), ", up ", uptime));
}

// The call under way, for callers that wait: abort-call ends the call.
std::string CallText(const v1::LifecycleCall& call) {
  return absl::StrCat(call.name(), call.client().empty() ? "" : " of " + call.client(), " for ",
                      absl::FormatDuration(absl::Seconds(static_cast<int64_t>(call.running_s()))),
                      call.num_waiting() > 0 ? absl::StrCat(", ", call.num_waiting(), " wait") : "",
                      "; somnus abort-call ends it");
}

void PrintStatus(const Server& server, const v1::GetStatusResponse& status) {
  const bool loading = status.state() == v1::ENGINE_STATE_LOADING;  // the rest is not known yet
  if (!loading) PrintField("model", status.model());
  const std::string level =
      status.sleep_level() > 0 ? absl::StrCat(" (level ", status.sleep_level(), ")") : "";
  const bool says_so = status.state() == v1::ENGINE_STATE_PAUSED;
  PrintShownField(
      "state", absl::StrCat(StateText(status.state()), level, status.paused() && !says_so ? ", paused" : ""));
  if (!status.error().empty()) PrintField("error", status.error());
  const std::string& line = status.state_report().line();
  if (!line.empty() || !status.not_ready_reason().empty())
    PrintField("why", line.empty() ? status.not_ready_reason() : line);
  if (status.has_lifecycle_call()) PrintField("call", CallText(status.lifecycle_call()));
  if (status.num_recoveries() > 0) {
    PrintField("epoch", absl::StrCat(status.group_epoch(), ", recoveries ", status.num_recoveries()));
  }
  if (loading) return PrintServer(server, status);
  PrintField("requests", absl::StrCat(status.num_requests_running(), " running, ",
                                      status.num_requests_waiting(), " waiting"));
  PrintField("blocks", absl::StrCat(status.free_blocks(), " free of ", status.total_blocks(), ", ",
                                    status.kv_cache_dtype()));
  if (!status.ranks().empty() && !status.ranks(0).weight_types().empty()) {
    PrintField("weights",
               absl::StrCat(status.ranks(0).weight_types(), status.ranks_size() > 1 ? " on rank 0" : ""));
  }
  PrintField("source", status.weights_version() > 0
                           ? absl::StrCat(status.weights_source(), ", version ", status.weights_version())
                           : "none: the weights are stale");
  if (!status.weights_note().empty()) PrintField("note", status.weights_note());
  PrintBackups(status);
  PrintField("context", absl::StrCat(status.max_model_len(), " tokens"));
  PrintServer(server, status);
  puts("");
  for (const v1::ReplicaStatus& replica : status.replicas()) PrintReplica(replica);
  PrintRanks(status);
}

absl::Status PrintJson(const v1::GetStatusResponse& status) {
  std::string json;
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  if (!google::protobuf::util::MessageToJsonString(status, &json, options).ok()) {
    return absl::InternalError("the status cannot be printed as JSON");
  }
  nlohmann::ordered_json fields = nlohmann::ordered_json::parse(json);
  // Scripts know the epoch under this name, and as a number; protobuf writes 64-bit numbers as strings.
  fields.erase("group_epoch");
  fields["epoch"] = status.group_epoch();
  for (int i = 0; i < status.replicas_size(); ++i) {
    nlohmann::ordered_json& replica = fields["replicas"][static_cast<size_t>(i)];
    replica.erase("group_epoch");
    replica["epoch"] = status.replicas(i).group_epoch();
    replica["num_requests"] = status.replicas(i).num_requests();
    replica["num_recoveries"] = status.replicas(i).num_recoveries();
  }
  puts(fields.dump(1, ' ', /*ensure_ascii=*/true).c_str());
  return absl::OkStatus();
}

// The status of a server with several models, none of which was named.
int ShowModels(const Server& server, const v1::GetStatusResponse& status,
               const v1::ListModelStatusResponse& models, bool json) {
  if (json) {
    puts(ModelsJson(models).c_str());
  } else {
    PrintServer(server, status);
    absl::PrintF("\n%s", ModelTable(models, OutputColumns()));
  }
  return AnyFailed(models) ? kServerError : kOk;
}

absl::StatusOr<int> ShowStatus(const ControlOptions& options) {
  if (options.ready) {
    ASSIGN_OR_RETURN(const bool ready, IsReady(options.server));
    puts(ready ? "ready" : "not ready");
    return ready ? kOk : kServerError;
  }
  ASSIGN_OR_RETURN(const Server server, FindServer(options.server));
  ASSIGN_OR_RETURN(const v1::GetStatusResponse status,
                   GetStatus(server, Named<v1::GetStatusRequest>(options), options.timeout));
  if (options.model.empty()) {
    const absl::StatusOr<v1::ListModelStatusResponse> models = ListModelStatus(server, options.timeout);
    if (models.ok() && models->models_size() > 1) return ShowModels(server, status, *models, options.json);
  }
  if (options.json) {
    RETURN_IF_ERROR(PrintJson(status));
  } else {
    PrintStatus(server, status);
  }
  return status.state() == v1::ENGINE_STATE_FAILED ? kServerError : kOk;
}

absl::StatusOr<int> PauseEngine(const ControlOptions& options) {
  ASSIGN_OR_RETURN(const Server server, FindServer(options.server));
  auto request = Named<v1::PauseRequest>(options);
  request.set_mode(options.mode);
  request.set_clear_cache(options.clear_cache);
  ASSIGN_OR_RETURN(const v1::PauseResponse response, Pause(server, request, options.timeout));
  absl::PrintF("paused after %.3f s\n", response.seconds());
  return kOk;
}

absl::StatusOr<int> ResumeEngine(const ControlOptions& options) {
  ASSIGN_OR_RETURN(const Server server, FindServer(options.server));
  ASSIGN_OR_RETURN(const v1::ResumeResponse response,
                   Resume(server, Named<v1::ResumeRequest>(options), options.timeout));
  absl::PrintF("resumed; the engine is %s\n", StateText(response.state()));
  return kOk;
}

absl::StatusOr<int> Reload(const ControlOptions& options) {
  ASSIGN_OR_RETURN(const Server server, FindServer(options.server));
  auto request = Named<v1::ReloadWeightsRequest>(options);
  request.set_path(options.path);
  request.set_mode(options.mode);
  if (options.weights_version > 0) request.set_weights_version(options.weights_version);
  ASSIGN_OR_RETURN(const v1::ReloadWeightsResponse response, ReloadWeights(server, request, options.timeout));
  absl::PrintF("version %d of the weights after %.3f s\n", response.weights_version(), response.seconds());
  return kOk;
}

absl::StatusOr<int> ReviveModel(const ControlOptions& options) {
  ASSIGN_OR_RETURN(const Server server, FindServer(options.server));
  ASSIGN_OR_RETURN(const v1::ReviveResponse response,
                   Revive(server, Named<v1::ReviveRequest>(options), options.timeout));
  const bool asleep = response.state() == v1::ENGINE_STATE_ASLEEP;
  absl::PrintF("%s after %.1f s\n", asleep ? "back, asleep," : "back", response.seconds());
  return kOk;
}

absl::StatusOr<int> EndCall(const ControlOptions& options) {
  ASSIGN_OR_RETURN(const Server server, FindServer(options.server));
  RETURN_IF_ERROR(AbortCall(server, Named<v1::AbortCallRequest>(options), options.timeout).status());
  puts("the call has ended");
  return kOk;
}

absl::StatusOr<int> RollReplicas(const ControlOptions& options) {
  ASSIGN_OR_RETURN(const Server server, FindServer(options.server));
  auto request = Named<v1::RollRequest>(options);
  request.set_grace_s(absl::ToDoubleSeconds(options.grace));
  ASSIGN_OR_RETURN(const v1::RollResponse response, Roll(server, request, options.timeout));
  absl::PrintF("restarted %d replicas in %.1f s\n", response.num_replicas(), response.seconds());
  return kOk;
}

}  // namespace

int RunStatus(const std::vector<std::string>& args) {
  ControlOptions o;
  const FlagTable table = ControlTable(
      &o, "status",
      "Shows the engine's state, its requests and KV blocks, and what memory each rank holds; of several\n"
      "models, and none named, a line for each. Exit code 1 when an engine has failed.\n\n"
      "  somnus status\n"
      "  until somnus status --ready; do sleep 1; done",
      {Flag::Switch(
           "json", &o.json,
           "the same as JSON (proto/control.proto, GetStatusResponse, with group_epoch as epoch; of several "
           "models ModelStatus)"),
       Flag::Switch("ready", &o.ready,
                    "only whether requests are served: exit code 0 when they are, else 1 or 3")});
  return RunControl(table, args, [&o] { return ShowStatus(o); });
}

int RunPause(const std::vector<std::string>& args) {
  ControlOptions o;
  const FlagTable table = ControlTable(
      &o, "pause", "Computes nothing until somnus resume. All memory stays; requests are accepted, and wait.",
      {ModeFlag(&o), Flag::Switch("clear-cache", &o.clear_cache,
                                  "empty the prefix cache; what open requests have computed is computed "
                                  "again")});
  return RunControl(table, args, [&o] { return PauseEngine(o); });
}

int RunResume(const std::vector<std::string>& args) {
  ControlOptions o;
  const FlagTable table =
      ControlTable(&o, "resume", "Ends a pause. An engine that sleeps besides goes on when it is awake.", {});
  return RunControl(table, args, [&o] { return ResumeEngine(o); });
}

int RunReloadWeights(const std::vector<std::string>& args) {
  ControlOptions o;
  o.timeout = absl::Hours(1);
  o.mode = v1::SLEEP_MODE_WAIT;
  FlagTable table =
      ControlTable(&o, "reload-weights",
                   "Reads the weights anew on every rank, from the checkpoint that was read last or from "
                   "PATH, another one\n"
                   "of the same architecture on the hosts of the workers.",
                   {ModeFlag(&o), Flag::Int("weights-version", &o.weights_version, 0, int64_t{1} << 62,
                                            "the number that the new weights have; 0: the last one and 1")});
  table.usage = "somnus reload-weights [PATH] [flags]";
  table.max_positional = 1;
  std::vector<std::string> positional;
  const auto reload = [&] {
    if (!positional.empty()) o.path = positional[0];
    return Reload(o);
  };
  return RunControl(table, args, reload, &positional);
}

int RunRevive(const std::vector<std::string>& args) {
  ControlOptions o;
  o.timeout = absl::Hours(1);
  const FlagTable table = ControlTable(
      &o, "revive",
      "Brings up new workers for a model that has failed for good. One of several models comes back\n"
      "asleep, and the next request wakes it.",
      {});
  return RunControl(table, args, [&o] { return ReviveModel(o); });
}

int RunAbortCall(const std::vector<std::string>& args) {
  ControlOptions o;
  const FlagTable table =
      ControlTable(&o, "abort-call",
                   "Ends the sleep, the wake-up, the wait for open requests or the change of the weights "
                   "that is under way; its\n"
                   "caller gets an error. Weights of which some may have been replaced are stale then: "
                   "nothing is served until a\n"
                   "reload or an update has brought others. `somnus status` names the call.",
                   {});
  return RunControl(table, args, [&o] { return EndCall(o); });
}

int RunRoll(const std::vector<std::string>& args) {
  ControlOptions o;
  o.timeout = absl::Hours(1);
  const FlagTable table = ControlTable(
      &o, "roll",
      "Restarts the workers of one replica after the other, while the others serve. No request is lost: "
      "those\n"
      "that are still open at a replica when --grace is over go on at another one, with the same tokens.",
      {Flag::Time("grace", &o.grace, absl::ZeroDuration(), absl::Hours(24),
                  "how long a replica's open requests may finish there")});
  return RunControl(table, args, [&o] { return RollReplicas(o); });
}

}  // namespace somnus::cli
