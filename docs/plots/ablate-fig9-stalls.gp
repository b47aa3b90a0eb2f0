set encoding utf8
set terminal svg size 800,526 fixed noenhanced font "DejaVu Sans,Helvetica,Arial,sans-serif,15" background "#ffffff" linewidth 1.2
set border 3 lc rgb "#444444"
set grid ytics lc rgb "#dddddd" lt 1 lw 0.7
set tics nomirror scale 0.5 textcolor rgb "#000000"
set style fill solid 0.85 noborder
set title "Time stalled, by periods of alignment"
set ylabel "ms a token, median and quartiles"
set xlabel "KV period, tokens" . "\n"
set key outside below center horizontal Left reverse samplen 2.5 spacing 1.25 width -2.2
set logscale x 2
set autoscale xfix
set offsets graph 0.03, graph 0.03, 0, 0
set xrange [*:*]
set yrange [0:*]
$series0 << END
1 8.73801655 8.33846415 9.62561795 
2 9.10635348 8.75691375 9.55069043 
4 9.00501499 8.04245461 9.56295202 
8 9.24851162 8.37638038 10.0490925 
16 9.4856581 8.59767233 9.91563334 
END
$series1 << END
1.02 9.62298739 9.1392858 10.4814189 
2.04 9.95509245 9.55205396 10.2973554 
4.08 10.8279007 9.9094751 11.3217825 
8.16 11.5266566 10.6973377 12.5776313 
16.32 10.9051056 10.5308286 13.0020077 
END
$series2 << END
1.04 10.877059 9.95809179 11.7027399 
2.08 10.3872201 9.96107364 10.9971412 
4.16 11.7123236 10.7836051 12.9729875 
8.32 12.514834 11.3017795 13.4544403 
16.64 13.6897697 11.2004413 16.7627594 
END
$series3 << END
1.06 12.5378443 11.8582536 13.512008 
2.12 13.7893365 13.3098741 14.2240289 
4.24 14.2119707 12.9315505 15.1810186 
8.48 14.4153967 12.4466601 15.3841666 
16.96 16.3438419 15.4205376 18.3399157 
END
$series4 << END
1.08 15.9094632 13.7101158 17.2739537 
2.16 17.5427226 15.762454 18.6348728 
4.32 17.0735279 15.9360532 18.7823211 
8.64 16.957995 15.6159231 17.9974855 
17.28 15.9378245 15.6846368 17.7956552 
END
plot \
	$series0 using 1:3:(0):($4 - $3) with vectors heads size screen 0.005,90 nofilled lw 1.2 lc rgb "#0072B2" notitle, \
	$series0 using 1:2 with linespoints lw 2 dt 1 pt 7 ps 0.8 lc rgb "#0072B2" title "token period 1", \
	$series1 using 1:3:(0):($4 - $3) with vectors heads size screen 0.005,90 nofilled lw 1.2 lc rgb "#D55E00" notitle, \
	$series1 using 1:2 with linespoints lw 2 dt 1 pt 5 ps 0.8 lc rgb "#D55E00" title "token period 2", \
	$series2 using 1:3:(0):($4 - $3) with vectors heads size screen 0.005,90 nofilled lw 1.2 lc rgb "#009E73" notitle, \
	$series2 using 1:2 with linespoints lw 2 dt 1 pt 9 ps 0.8 lc rgb "#009E73" title "token period 4", \
	$series3 using 1:3:(0):($4 - $3) with vectors heads size screen 0.005,90 nofilled lw 1.2 lc rgb "#CC79A7" notitle, \
	$series3 using 1:2 with linespoints lw 2 dt 1 pt 11 ps 0.8 lc rgb "#CC79A7" title "token period 8", \
	$series4 using 1:3:(0):($4 - $3) with vectors heads size screen 0.005,90 nofilled lw 1.2 lc rgb "#E69F00" notitle, \
	$series4 using 1:2 with linespoints lw 2 dt 1 pt 13 ps 0.8 lc rgb "#E69F00" title "token period 16"
