#pragma once
// The part of a simulated cluster with several models that the seed draws before anything runs.

#include <cstdint>
#include <vector>

#include "coordinator/several_models/shared_devices_options.h"
#include "coordinator/several_models/sharing_model.h"
#include "tests/simulation/cluster_plan.h"
#include "tests/simulation/site.h"

namespace somnus::simulation {

struct ModelPlan {
  ClusterPlan engine;
  SharingModel sharing;
};

struct ModelsPlan {
  std::vector<ModelPlan> models;
  SharedDevicesOptions devices;
};

// Sets the site's model and weights, too. The budget of device memory holds every model, and not all of the
// models at once.
ModelsPlan DrawModelsPlan(Site* site);

}  // namespace somnus::simulation
