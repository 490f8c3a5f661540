#include "coordinator/grpc/status_messages.h"

#include "base/monotonic.h"
#include "coordinator/grpc/control_fields.h"

namespace somnus {

void Fill(const StateReport& report, v1::StateReport* out) {
  if (report.serving()) return;
  out->set_line(CleanMessage(report.Line()));
  out->set_what(CleanMessage(report.what));
  out->set_why(CleanMessage(report.why));
  out->set_since_unix_s(absl::ToUnixSeconds(report.since));
  out->set_way_out(report.way_out);
}

void Fill(const LifecycleCallStats& call, v1::GetStatusResponse* response) {
  if (call.name.empty()) return;
  v1::LifecycleCall* const out = response->mutable_lifecycle_call();
  out->set_name(call.name);
  out->set_client(call.client);
  out->set_running_s(absl::ToDoubleSeconds(MonotonicNow() - call.began));
  out->set_num_waiting(call.num_waiting);
}

void AddReplicas(const EngineStats& stats, v1::GetStatusResponse* response) {
  for (size_t i = 0; i < stats.replicas.size(); ++i) {
    const ReplicaStats& replica = stats.replicas[i];
    v1::ReplicaStatus* status = response->add_replicas();
    status->set_replica(static_cast<int32_t>(i));
    status->set_state(ToProto(replica.state));
    status->set_error(replica.error);
    status->set_num_requests_running(replica.num_running);
    status->set_num_requests_waiting(replica.num_waiting);
    status->set_num_requests(replica.num_requests);
    status->set_num_recoveries(replica.num_recoveries);
    status->set_group_epoch(replica.group_epoch);
  }
}

}  // namespace somnus
