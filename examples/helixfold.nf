#!/usr/bin/env nextflow
// Search alignments on processor nodes and fold on GPU nodes, a few targets in a task.
//
//   nextflow run examples/helixfold.nf --targets proteins.fasta --search "--databases /data/colabfold" \
//       --predict "--dtype bfloat16" -resume
//
// The two processes are modules of their own: their channels are (meta, files), as nf-core's are, and FOLD also emits
// the tables that nf-core/proteinfold reads. Labels say which nodes they need; give these resources in nextflow.config.

params.targets = null
params.search = ''
params.predict = ''
params.per_task = 20
params.outdir = 'results'

process SEARCH {
    tag "${meta.id}"
    label 'process_high'

    input:
    tuple val(meta), path(fasta)
    val options

    output:
    tuple val(meta), path('features'), emit: features

    // Exit code 1: some targets failed, and the others are there.
    script:
    """
    helixfold features ${fasta} --output features --threads ${task.cpus} ${options} || [ \$? -eq 1 ]
    """
}

process FOLD {
    tag "${meta.id}"
    label 'process_gpu'
    publishDir params.outdir, mode: 'copy'

    input:
    tuple val(meta), path(features)
    val options

    output:
    tuple val(meta), path('predictions/*'), emit: raw
    tuple val(meta), path('predictions/*/ranked_0.pdb'), emit: top_ranked_pdb, optional: true
    tuple val(meta), path('predictions/*/ranked_*.pdb'), emit: pdb, optional: true
    tuple val(meta), path('predictions/*/*_plddt.tsv'), emit: multiqc, optional: true
    tuple val(meta), path('predictions/*/*_msa.tsv'), emit: msa, optional: true
    tuple val(meta), path('predictions/*/*_pae.tsv'), emit: pae, optional: true
    tuple val(meta), path('predictions/*/*_ptm.tsv'), emit: ptm, optional: true

    script:
    """
    helixfold predict --features ${features} --output predictions ${options} || [ \$? -eq 1 ]
    """
}

workflow {
    targets = channel.fromPath(params.targets, checkIfExists: true)
        .splitFasta(by: params.per_task, file: true)
        .map { fasta -> tuple([id: fasta.baseName], fasta) }
    SEARCH(targets, params.search)
    FOLD(SEARCH.out.features, params.predict)
}
