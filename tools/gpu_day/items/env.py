"""The ceilings: copies on the device and over the bus, which gpu_bench measures before it asks what else is wanted."""
import bench


def run(kit):
    bench.rows_of(kit, "env.bench", "--parts=ceilings")
