#pragma once
// Reports for people and for programs.

#include <optional>
#include <string>

#include "tools/doctor/host_report.h"
#include "tools/doctor/model_report.h"

namespace somnus {

struct DoctorReport {
  HostReport host;
  std::optional<HostCeilings> ceilings;  // nothing: not measured
  std::optional<ModelReport> model;      // nothing: none was named
};

// A table with a line for each choice and its reason; ends with a newline.
std::string DoctorText(const DoctorReport& report);
// One JSON object; ends with a newline. Bytes and tokens per second are numbers.
std::string DoctorJson(const DoctorReport& report);

}  // namespace somnus
