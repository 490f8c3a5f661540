#include "worker/worker_main.h"

int main(int argc, char** argv) { return somnus::WorkerMain(argc, argv, somnus::RealWorkerParts()); }
