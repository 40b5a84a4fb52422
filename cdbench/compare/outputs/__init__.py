"""What a gate's receipt becomes for the systems that run it: files, a summary, annotations."""

from cdbench.compare.outputs.inputs import baselines_read as baselines_read
from cdbench.compare.outputs.inputs import files_read as files_read
from cdbench.compare.outputs.write import prove_outputs as prove_outputs
from cdbench.compare.outputs.write import write_outputs as write_outputs
